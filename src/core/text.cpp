#include "cuboid/core/text.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

namespace cuboid {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); };
  const std::size_t width = b.size() + 1;
  // Rows of the dynamic programme for prefixes of a of length i-2, i-1 and i.
  std::vector<std::size_t> before(width), last(width), row(width);
  for (std::size_t j = 0; j < width; ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before.swap(last);
    last.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j < width; ++j) {
      const char x = lower(a[i - 1]);
      const char y = lower(b[j - 1]);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (x == y ? 0 : 1)});
      if (i > 1 && j > 1 && x == lower(b[j - 2]) && y == lower(a[i - 2])) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string* best = nullptr;
  std::size_t least = 0;
  for (const std::string& candidate : candidates) {
    // A distance is at least the difference of the lengths.
    const std::size_t bound = std::max(word.size(), candidate.size()) - std::min(word.size(), candidate.size());
    if (best != nullptr && bound >= least) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (best != nullptr && distance >= least) continue;
    best = &candidate;
    least = distance;
  }
  return best == nullptr ? std::string() : *best;
}

std::string join(const std::vector<std::string>& items, std::string_view separator) {
  return fmt::format("{}", fmt::join(items, separator));
}

std::string counted(long long number, std::string_view one, std::string_view several) {
  if (number == 1) return fmt::format("1 {}", one);
  return several.empty() ? fmt::format("{} {}s", number, one) : fmt::format("{} {}", number, several);
}

std::string spaced(std::string key) {
  std::replace(key.begin(), key.end(), '_', ' ');
  return key;
}

std::string naming(std::string_view flag, std::string_view reasons) {
  std::string named;
  for (const std::string_view line : split(reasons, '\n')) {
    named +=
        fmt::format("{}{}{}", named.empty() ? "" : "\n", line.starts_with("--") ? "" : fmt::format("{} ", flag), line);
  }
  return named;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string exact(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("-0123456789") == std::string::npos) text += ".0";
  return text;
}

}  // namespace cuboid
