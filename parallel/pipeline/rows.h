// How generators write rows. Internal to parallel/pipeline.
#pragma once

#include <vector>

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

/// Position in the pipeline of one row: rank r of p, m micro-batches, v stages a rank.
struct RowShape {
  int r = 0;
  int p = 1;
  int m = 1;
  int v = 1;
};

Row gpipe_row(const RowShape& shape);
Row one_f_one_b_row(const RowShape& shape);
Row interleaved_row(const RowShape& shape);
Row looped_bfs_row(const RowShape& shape);

}  // namespace cuboid::pipeline
