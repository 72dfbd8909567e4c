#include "cuboid/core/units.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

namespace cuboid {

std::string human_bytes(std::uint64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds >= 3600) {
    const auto minutes = static_cast<long long>(std::llround(seconds / 60));
    return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
  }
  if (seconds >= 60) {
    const auto whole = static_cast<long long>(std::llround(seconds));
    return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  }
  if (seconds >= 1) return fmt::format("{:.3g} s", seconds);
  if (seconds >= 1e-3) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

std::string human_count(double count) {
  constexpr std::array<const char*, 6> kUnits = {"", " K", " M", " G", " T", " P"};
  std::size_t unit = 0;
  while (std::abs(count) >= 1000 && unit + 1 < kUnits.size()) {
    count /= 1000;
    ++unit;
  }
  return fmt::format("{:.4g}{}", count, kUnits[unit]);
}

}  // namespace cuboid
