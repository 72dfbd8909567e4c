// Schedules that split B into I and W and let W fill the bubbles (arXiv 2401.10241), and DualPipeV.
#include <algorithm>
#include <array>
#include <deque>

#include "rows.h"

namespace cuboid::pipeline {
namespace {

// ZB-H1 and ZB-H2: warm_up forwards, then F, I and the W of `deferred` micro-batches ago; cool-down of I and W; last
// W's.
Row handcrafted_row(const RowShape& shape, int warm_up, int deferred) {
  const int m = shape.m;
  warm_up = std::min(warm_up, m);
  Row row;
  int f = 0;
  int w = 0;
  while (f < warm_up) add_f(row, shape.r, f++);
  for (int i = 0; i < m; ++i) {
    const bool steady = f < m;
    if (steady) add_f(row, shape.r, f++);
    add_i(row, shape.r, i);
    // Once there are no forwards left, a W fills each wait for the next I.
    if (steady ? i >= deferred : w <= i) add_w(row, shape.r, w++);
  }
  while (w < m) add_w(row, shape.r, w++);
  return row;
}

// Writes a row of V placement chunk by chunk; each kind of action of a chunk counts its micro-batches itself.
class VRow {
 public:
  explicit VRow(const RowShape& shape) : stage_{v_stage(shape, 0), v_stage(shape, 1)} {}

  void f(int chunk) { add_f(row_, stage(chunk), next(f_, chunk)); }
  void b(int chunk) { add_b(row_, stage(chunk), next(b_, chunk)); }
  void i(int chunk) {
    const int k = next(b_, chunk);
    add_i(row_, stage(chunk), k);
    pending_.emplace_back(chunk, k);
  }
  // The W of the oldest I that has none, of any chunk.
  void w() {
    add_w(row_, stage(pending_.front().first), pending_.front().second);
    pending_.pop_front();
  }
  // The W of the oldest I of this chunk that has none.
  void w(int chunk) {
    const auto oldest =
        std::find_if(pending_.begin(), pending_.end(), [&](const auto& entry) { return entry.first == chunk; });
    add_w(row_, stage(chunk), oldest->second);
    pending_.erase(oldest);
  }
  // F of one chunk together with B of the other.
  void f_and_b(int f_chunk, int b_chunk) {
    f(f_chunk);
    row_.back().overlapped = true;
    b(b_chunk);
  }
  int forwards(int chunk) const { return f_[static_cast<std::size_t>(chunk)]; }
  int input_gradients(int chunk) const { return b_[static_cast<std::size_t>(chunk)]; }
  bool has_pending(int chunk) const {
    return std::any_of(pending_.begin(), pending_.end(), [&](const auto& entry) { return entry.first == chunk; });
  }
  Row take() { return std::move(row_); }

 private:
  int stage(int chunk) const { return stage_[static_cast<std::size_t>(chunk)]; }
  static int next(std::array<int, 2>& counter, int chunk) { return counter[static_cast<std::size_t>(chunk)]++; }

  std::array<int, 2> stage_;
  std::array<int, 2> f_{};
  std::array<int, 2> b_{};
  std::deque<std::pair<int, int>> pending_;  // I's without W: chunk, micro-batch
  Row row_;
};

void repeat(int times, auto action) {
  for (int i = 0; i < times; ++i) action(i);
}

}  // namespace

Row zb_h1_row(const RowShape& shape) {
  return handcrafted_row(shape, shape.p - 1 - shape.r, shape.r);
}

Row zb_h2_row(const RowShape& shape) {
  return handcrafted_row(shape, 2 * (shape.p - 1 - shape.r), 2 * shape.r);
}

// arXiv 2401.10241, section 5. It needs 2p-1 micro-batches; fewer are cut out of it.
Row zb_v_row(const RowShape& shape) {
  const int r = shape.r;
  const int p = shape.p;
  const int m = std::max(shape.m, 2 * p - 1);
  VRow row(shape);
  repeat(2 * (p - r) - 1, [&](int) { row.f(0); });
  repeat(r, [&](int) { row.f(1), row.f(0); });
  repeat(p - r, [&](int) { row.f(1), row.i(1), row.w(1); });
  while (row.forwards(1) < m) {
    if (row.forwards(0) < m) row.f(0);
    row.i(0), row.w(0);
    row.f(1), row.i(1), row.w(1);
  }
  repeat(r, [&](int) { row.i(0), row.i(1); });
  repeat(p - r, [&](int) { row.i(0), row.w(0); });
  while (row.has_pending(1)) row.w(1);
  while (row.has_pending(0)) row.w(0);
  return keep_micro_batches(row.take(), shape.m);
}

// The eight steps of DualPipeV (github.com/deepseek-ai/DualPipe). @pre m >= 2p
Row dualpipe_v_row(const RowShape& shape) {
  const auto [r, p, m, v] = shape;
  const bool last = r == p - 1;
  VRow row(shape);
  repeat(2 * (p - r - 1), [&](int) { row.f(0); });
  repeat(r + 1, [&](int) { row.f(0), row.f(1); });
  repeat(p - r - 1, [&](int) { row.i(1), row.w(), row.f(1); });
  repeat(m - 2 * p + r + 1, [&](int i) {
    if (i == 0 && last) {  // apart: the backward on the turn need not wait for the forward
      row.f(0), row.b(1);
    } else {
      row.f_and_b(0, 1);
    }
    row.f_and_b(1, 0);
  });
  repeat(p - r - 1, [&](int) { row.b(1), row.f_and_b(1, 0); });
  repeat(2 * (r + 1), [&](int i) {  // the second half leaves its weight gradients for the end
    const int chunk = i % 2 == 0 ? 1 : 0;
    i < r + 1 ? row.b(chunk) : row.i(chunk);
  });
  repeat(p - r - 1, [&](int) { row.w(), row.i(0); });
  repeat(r + 1, [&](int) { row.w(); });
  return row.take();
}

}  // namespace cuboid::pipeline
