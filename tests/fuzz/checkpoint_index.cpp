// A checkpoint's index. The checksum in its first line is made right, or nothing behind it would be reached.
#include "cuboid/formats/checkpoint_index.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx", static_cast<unsigned long long>(checksum_of(data, size)));
  const std::string text = std::string("{\"checksum\":\"") + digits + "\",\n" + std::string(fuzz::text_of(data, size));
  return fuzz::refused_or_read([&] {
    const CheckpointIndex index = read_checkpoint_index(text, "index.json");
    // What is accepted is written and read again.
    read_checkpoint_index(write_checkpoint_index(index), "again");
  });
}
