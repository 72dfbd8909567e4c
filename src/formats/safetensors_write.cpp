#include <map>

#include "cuboid/formats/durable.h"
#include "cuboid/formats/safetensors.h"

#include "json_text.h"

namespace cuboid {

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  // Keys in the order of the data, as readers that stream expect.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    CUBOID_CHECK(tensor.name != "__metadata__" && !header.contains(tensor.name), "tensor name " + tensor.name);
    CUBOID_CHECK(static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.type) == tensor.bytes.size() &&
                     tensor.type != StoredType::unknown,
                 "bytes of tensor " + tensor.name);
    header[tensor.name] = {{"dtype", name_of(tensor.type)},
                           {"shape", tensor.shape.dims()},
                           {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins aligned
  const std::uint64_t length = text.size();

  AtomicFile file(path);
  file.write(&length, sizeof(length));
  file.write(text.data(), text.size());
  for (const TensorToWrite& tensor : tensors) file.write(tensor.bytes.data(), tensor.bytes.size());
  file.commit();
}

}  // namespace cuboid
