// Model configurations.
#include "cuboid/formats/hf_config.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  return fuzz::refused_or_read([&] {
    ModelConfig config = read_hf_config(std::string(fuzz::text_of(data, size)), "config.json");
    if (read_hf_config(write_hf_config(config), "config.json") != config) std::abort();
  });
}
