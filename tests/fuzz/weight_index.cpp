// Indexes of Hugging Face shards, beside one sound shard.
#include <array>
#include <filesystem>
#include <fstream>

#include "cuboid/formats/safetensors.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  static const std::string folder = [] {
    std::string made = "/dev/shm/cuboid-fuzz-XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) std::abort();
    const std::array<float, 2> values = {1, 2};
    const std::array<TensorToWrite, 1> tensors = {{{"a", StoredType::F32, {2}, std::as_bytes(std::span(values))}}};
    write_safetensors(made + "/model-00001-of-00002.safetensors", tensors);
    return made;
  }();
  const std::string path = folder + "/model.safetensors.index.json";
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  return fuzz::refused_or_read([&] {
    const WeightFolder read = WeightFolder::open(path);
    for (const std::string& name : read.names()) {
      // Only what lies in the folder can be named.
      if (name != "a" || read.at(name).path().find("..") != std::string::npos) std::abort();
    }
  });
}
