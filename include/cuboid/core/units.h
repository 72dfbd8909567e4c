// Quantities as people read them. Machine output (JSON) prints plain numbers: bytes, seconds, FLOPs.
#pragma once

#include <cstdint>
#include <string>

namespace cuboid {

/// "1.50 GiB", "312 B".
std::string human_bytes(std::uint64_t bytes);
/// "12.3 s", "4.1 ms", "87 us", "1 h 02 min".
std::string human_seconds(double seconds);
/// A count with a decimal prefix: "124.4 M", "6.74 G".
std::string human_count(double count);

}  // namespace cuboid
