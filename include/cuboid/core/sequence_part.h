// Which positions of a sequence a rank holds, when the sequence is cut over ranks.
#pragma once

#include <cstdint>
#include <limits>

#include "cuboid/core/host_device.h"

namespace cuboid {

/// Rows 0, 1, … of a part of a sequence and their positions in it, which ascend: one stretch, or two with a gap.
struct SequencePart {
  std::int64_t first = 0;                                          ///< position of row 0
  std::int64_t gap_at = std::numeric_limits<std::int64_t>::max();  ///< first row behind the gap
  std::int64_t gap = 0;                                            ///< positions left out there

  CUBOID_HD std::int64_t position(std::int64_t row) const { return first + row + (row < gap_at ? 0 : gap); }
  /// End of the stretch without a gap that `row` begins or lies in, of a part of `rows` rows.
  CUBOID_HD std::int64_t stretch_end(std::int64_t row, std::int64_t rows) const {
    return row < gap_at && gap_at < rows ? gap_at : rows;
  }
  /// The part without its first `rows` rows.
  SequencePart from(std::int64_t rows) const {
    if (rows < gap_at) return {first + rows, gap_at == SequencePart{}.gap_at ? gap_at : gap_at - rows, gap};
    return {first + rows + gap};
  }
  friend bool operator==(const SequencePart&, const SequencePart&) = default;
};

/// The part of a context-parallel rank: chunks rank and 2·ranks - 1 - rank of 2·ranks equal ones. Under a causal mask
/// the first chunk has the cheapest queries where the second has the dearest: every rank has the same work. (With a
/// window the last rank, in the middle of the sequence, has most.)
/// @pre length is a multiple of 2·ranks, unless ranks is 1
CUBOID_HD inline SequencePart context_part(std::int64_t length, int rank, int ranks) {
  if (ranks == 1) return {};
  const std::int64_t chunk = length / (2 * ranks);
  return {rank * chunk, chunk, (2 * (ranks - 1 - rank)) * chunk};
}

}  // namespace cuboid
