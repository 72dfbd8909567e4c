// Memory by category as people read it: one table for refusals, for a run that hits its limit, and for its end.
#pragma once

#include <string>
#include <vector>

#include "cuboid/runtime/memory.h"

namespace cuboid {

struct MemoryRow {
  std::string label;
  MemoryUse use;
};

/// A header and one line a row, none after the last; categories in which no row has anything are left out.
std::string memory_table(const std::vector<MemoryRow>& rows);

/// The table of a run's ranks, in rank order. Ranks with equal bytes share a row ("ranks 0-3, 8"); of more than `most`
/// different rows only the largest are shown, and how many ranks were left out.
std::string memory_table_of_ranks(const std::vector<MemoryUse>& ranks, std::size_t most = 8);

}  // namespace cuboid
