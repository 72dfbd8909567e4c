// Where the rows of context-parallel parts of a sequence lie in the whole. Internal to kernels/.
#pragma once

#include "cuboid/kernels/kernels.h"

namespace cuboid::kernels {

/// Rows (D) of parts (R,B,K,T/R,D), numbered as they lie there, in whole (B,K,T,D).
struct SequencePartRows {
  int ranks;
  std::int64_t heads;   ///< B·K
  std::int64_t rows;    ///< T/R
  std::int64_t length;  ///< D

  explicit SequencePartRows(const Tensor& parts)
      : ranks(static_cast<int>(parts.dim(0))),
        heads(parts.dim(1) * parts.dim(2)),
        rows(parts.dim(3)),
        length(parts.dim(4)) {}

  std::int64_t count() const { return ranks * heads * rows; }
  CUBOID_HD std::int64_t in_whole(std::int64_t i) const {
    const std::int64_t all = ranks * rows;
    const auto rank = static_cast<int>(i / (heads * rows));
    const std::int64_t head = i / rows % heads;
    return head * all + context_part(all, rank, ranks).position(i % rows);
  }
};

}  // namespace cuboid::kernels
