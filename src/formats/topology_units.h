// What a PCIe link, an NVLink and the paths of a node carry, and the notes that every reader makes. Private to formats.
#pragma once

#include "cuboid/value/topology.h"

namespace cuboid {

/// Bytes a second and direction of a PCIe link: transfers × lanes × the code's efficiency ÷ 8 (8b/10b up to 5 GT/s,
/// 128b/130b from 8 GT/s on; PCI Express Base Specification).
double pcie_bandwidth(double giga_transfers, int lanes);

/// Where a description has no numbers.
inline constexpr double kAssumedNvlink = 25e9;  ///< a link of NVLink 2, 3 or 4, each direction
inline constexpr double kAssumedWire = 25e9;    ///< a card of 200 Gbit/s
inline constexpr double kAssumedSocket = 16e9;  ///< between the sockets of a node, for one device
inline constexpr double kAssumedNetworkLatency = 5e-6;

/// The path with the latency that is assumed for its kind.
Path path_of(PathKind kind, int links, double bandwidth);

/// Notes what a node lacks: numbers left out among its GPUs, no cards, GPUs to which no card is near.
void note_what_is_missing(const NodeKind& kind, std::vector<std::string>& notes);

}  // namespace cuboid
