// How generators write rows. Internal to parallel/pipeline.
#pragma once

#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/value/schedule.h"

namespace cuboid::pipeline {

using Row = std::vector<Action>;

inline void add_f(Row& row, int stage, int micro_batch) {
  row.push_back({ActionKind::forward, stage, micro_batch});
}
inline void add_b(Row& row, int stage, int micro_batch) {
  row.push_back({ActionKind::backward, stage, micro_batch});
}
inline void add_i(Row& row, int stage, int micro_batch) {
  row.push_back({ActionKind::input_gradient, stage, micro_batch});
}
inline void add_w(Row& row, int stage, int micro_batch) {
  row.push_back({ActionKind::weight_gradient, stage, micro_batch});
}

/// Names what no schedule can be made of: ranks, micro-batches or stages below 1, or so many of them that its rows
/// would fill the memory.
void check_size(int ranks, int micro_batches, int virtual_stages, Problems& problems);

/// Position in the pipeline of one row: rank r of p, m micro-batches, v stages a rank.
struct RowShape {
  int r = 0;
  int p = 1;
  int m = 1;
  int v = 1;
};

// Loop placement: stage s on rank s mod p.
Row gpipe_row(const RowShape& shape);
Row one_f_one_b_row(const RowShape& shape);
Row interleaved_row(const RowShape& shape);
Row looped_bfs_row(const RowShape& shape);
Row zb_h1_row(const RowShape& shape);
Row zb_h2_row(const RowShape& shape);
// V placement: rank r has stages r (chunk 0) and 2p-1-r (chunk 1).
Row zb_v_row(const RowShape& shape);
Row v_half_row(const RowShape& shape);
Row v_min_row(const RowShape& shape);
Row dualpipe_v_row(const RowShape& shape);

/// The first stage of a chunk of V placement on rank r.
inline int v_stage(const RowShape& shape, int chunk) {
  return chunk == 0 ? shape.r : 2 * shape.p - 1 - shape.r;
}

/// Drops the actions of micro-batches m and above. A schedule made for more micro-batches stays valid, since actions
/// need only actions of the same micro-batch.
Row keep_micro_batches(Row row, int m);

}  // namespace cuboid::pipeline
