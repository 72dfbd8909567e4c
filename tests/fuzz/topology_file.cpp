// Topologies as TOML.
#include "cuboid/formats/topology.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  return fuzz::refused_or_read([&] {
    const Topology topology = parse_topology(fuzz::text_of(data, size), "topo.toml");
    if (parse_topology(write_topology(topology), "topo.toml") != topology) std::abort();
  });
}
