// The output of nvidia-smi topo -m, and of nvidia-smi -L after a zero byte.
#include "cuboid/formats/topology.h"

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cuboid;
  return fuzz::refused_or_read([&] {
    const std::string_view text = fuzz::text_of(data, size);
    const auto zero = text.find('\0');
    Topology topology = parse_nvidia_topology(text.substr(0, zero), "topo.txt");
    if (zero != std::string_view::npos) {
      add_gpu_list(topology, text.substr(zero + 1), "list.txt");
      topology = visible_devices(topology, "1,0,GPU-,MIG-1");
    }
    fuzz::sink = fuzz::sink + levels(topology).size();
  });
}
