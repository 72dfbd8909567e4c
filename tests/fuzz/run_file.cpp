// Run files.
#include "cuboid/formats/run_file.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  return fuzz::refused_or_read([&] {
    const RunConfig run = parse_run_file(std::string(fuzz::text_of(data, size)), "run.toml");
    if (parse_run_file(write_run_file(run), "run.toml") != run) std::abort();
  });
}
