// NCCL's topology XML.
#include "cuboid/formats/topology.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  return fuzz::refused_or_read([&] {
    const Topology topology = parse_nccl_topology(fuzz::text_of(data, size), "topo.xml");
    if (!faults_of(topology).empty()) std::abort();
    fuzz::sink = fuzz::sink + levels(topology).size();
  });
}
