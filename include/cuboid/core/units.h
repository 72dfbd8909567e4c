// Quantities as people read them. Machine output (JSON) prints plain numbers: bytes, seconds, FLOPs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace cuboid {

/// "1.50 GiB", "312 B".
std::string human_bytes(std::uint64_t bytes);
/// Bytes from "4096", "500MB", "1.5 GiB": kB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB of 1024; case and
/// spaces do not matter. @throws Error{request}: no such number or unit, less than a byte, or past 2^63 - 1
std::int64_t parse_bytes(std::string_view text);
/// "12.3 s", "4.1 ms", "87 us", "1 h 02 min".
std::string human_seconds(double seconds);
/// A count with a decimal prefix: "124.4 M", "6.74 G".
std::string human_count(double count);

}  // namespace cuboid
