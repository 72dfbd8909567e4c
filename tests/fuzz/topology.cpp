// Topologies (nvidia-smi topo -m, NCCL's XML, TOML) and cluster files.
#include "cuboid/formats/topology.h"

#include "cuboid/formats/cluster_file.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  const std::string text(fuzz::text_of(data, size));
  fuzz::refused_or_read([&] { parse_topology(text, "topology"); });
  fuzz::refused_or_read([&] { parse_nvidia_topology(text, "topo.txt"); });
  fuzz::refused_or_read([&] { parse_nccl_topology(text, "topo.xml"); });
  return fuzz::refused_or_read([&] { parse_cluster_file(text, "cluster.toml"); });
}
