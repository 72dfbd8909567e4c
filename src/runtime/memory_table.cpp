#include "cuboid/runtime/memory_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "cuboid/core/units.h"

namespace cuboid {
namespace {

// "0-3, 8": ascending numbers with runs in short.
std::string ranges(const std::vector<std::size_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last == i ? fmt::format("{}", numbers[i]) : fmt::format("{}-{}", numbers[i], numbers[last]);
    i = last + 1;
  }
  return text;
}

}  // namespace

std::string memory_table(const std::vector<MemoryRow>& rows) {
  std::size_t width = 0;
  for (const MemoryRow& row : rows) width = std::max(width, row.label.size());
  std::vector<std::size_t> shown;
  for (std::size_t i = 0; i < kCategoryCount; ++i) {
    if (std::any_of(rows.begin(), rows.end(), [&](const MemoryRow& row) { return row.use.bytes[i] != 0; })) {
      shown.push_back(i);
    }
  }
  std::string text = fmt::format("  {:{}}", "", width);
  for (const std::size_t i : shown) text += fmt::format(" {:>13}", name_of(static_cast<Category>(i)));
  text += fmt::format(" {:>13}", "total");
  for (const MemoryRow& row : rows) {
    text += fmt::format("\n  {:{}}", row.label, width);
    for (const std::size_t i : shown)
      text += fmt::format(" {:>13}", human_bytes(static_cast<std::uint64_t>(row.use.bytes[i])));
    text += fmt::format(" {:>13}", human_bytes(static_cast<std::uint64_t>(row.use.total)));
  }
  return text;
}

std::string memory_table_of_ranks(const std::vector<MemoryUse>& ranks, std::size_t most) {
  struct Group {
    MemoryUse use;
    std::vector<std::size_t> ranks;
  };
  std::vector<Group> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const Group& group) { return group.use == ranks[rank]; });
    if (same != groups.end()) {
      same->ranks.push_back(rank);
    } else {
      groups.push_back({ranks[rank], {rank}});
    }
  }
  std::size_t left_out = 0;
  if (groups.size() > most) {
    std::stable_sort(groups.begin(), groups.end(),
                     [](const Group& a, const Group& b) { return a.use.total > b.use.total; });
    for (std::size_t i = most; i < groups.size(); ++i) left_out += groups[i].ranks.size();
    groups.resize(most);
  }
  std::vector<MemoryRow> rows;
  for (const Group& group : groups) {
    rows.push_back({(group.ranks.size() > 1 ? "ranks " : "rank ") + ranges(group.ranks), group.use});
  }
  return memory_table(rows) + (left_out > 0 ? fmt::format("\n  and {} ranks with less", left_out) : "");
}

}  // namespace cuboid
