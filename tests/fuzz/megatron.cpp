// Megatron indexes. The first two bytes say how long the .bin is.
#include "cuboid/formats/megatron.h"

#include <filesystem>
#include <fstream>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  namespace fs = std::filesystem;
  static const std::string prefix = [] {
    std::string pattern = "/dev/shm/cuboid-fuzz-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    std::ofstream(pattern + "/data.bin").put('\0');
    return pattern + "/data";
  }();
  if (size < 2) return 0;
  std::ofstream(prefix + ".idx", std::ios::binary)
      .write(reinterpret_cast<const char*>(data + 2), static_cast<std::streamsize>(size - 2));
  fs::resize_file(prefix + ".bin", static_cast<std::uintmax_t>(data[0]) + 256U * data[1]);
  return fuzz::refused_or_read([&] {
    const MegatronIndex index = MegatronIndex::open(prefix);
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < index.sequences(); ++i) sum += index.length(i);
    for (std::int64_t i = 0; i <= index.documents(); ++i) {
      if (index.document_begin(i) < 0 || index.document_begin(i) > index.sequences()) std::abort();
    }
    if (sum != index.tokens()) std::abort();
  });
}
