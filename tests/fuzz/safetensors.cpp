// Weight files: headers, and every byte that a tensor is said to have.
#include "cuboid/formats/safetensors.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  return fuzz::refused_or_read([&] {
    const fuzz::MemoryFile file(data, size);
    const SafetensorsFile read = SafetensorsFile::open(file.path());
    for (const StoredTensor& tensor : read.tensors()) {
      for (const std::byte byte : read.bytes(tensor)) fuzz::sink = fuzz::sink + static_cast<std::uint64_t>(byte);
    }
  });
}
