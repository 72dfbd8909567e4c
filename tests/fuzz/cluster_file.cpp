// Cluster files.
#include "cuboid/formats/cluster_file.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  return fuzz::refused_or_read([&] { parse_cluster_file(std::string(fuzz::text_of(data, size)), "cluster.toml"); });
}
