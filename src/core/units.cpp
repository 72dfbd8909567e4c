#include "cuboid/core/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "cuboid/core/error.h"

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

std::int64_t parse_bytes(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{{"", 1},
                                                                           {"b", 1},
                                                                           {"kb", 1e3},
                                                                           {"mb", 1e6},
                                                                           {"gb", 1e9},
                                                                           {"tb", 1e12},
                                                                           {"kib", 0x1p10},
                                                                           {"mib", 0x1p20},
                                                                           {"gib", 0x1p30},
                                                                           {"tib", 0x1p40}}};
  std::string word;
  for (const char c : text) {
    if (c != ' ') word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number, std::chars_format::fixed);
  const std::string_view unit(end, static_cast<std::size_t>(word.data() + word.size() - end));
  const auto* known = std::find_if(kUnits.begin(), kUnits.end(), [&](const auto& u) { return u.first == unit; });
  if (error != std::errc() || known == kUnits.end()) {
    throw Error(ErrorKind::request, "not a number of bytes; write 4096, 500MB or 1.5GiB");
  }
  const double bytes = number * known->second;
  if (!(bytes >= 1 && bytes < 0x1p63)) throw Error(ErrorKind::request, "must be from 1 byte to 2^63 - 1 bytes");
  return static_cast<std::int64_t>(bytes);
}

std::string human_seconds(double seconds) {
  if (seconds == 0) return "0 s";
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
