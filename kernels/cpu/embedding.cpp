#include "kernels/body/embedding.h"

#include "kernels/body/heads.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels::cpu {
namespace {

// Columns of one chunk when rows may meet in one row of the table: the chunk, not the row, is what threads share out.
constexpr std::int64_t kTableChunk = 256;

}  // namespace

void embedding(const Device&, const Tensor& tokens, const Tensor& table, std::int64_t first_row, const Tensor& y) {
  const std::int64_t n = row_length(y);
  with_storage(y, [&]<typename T>(T) {
    const std::int32_t* ids = tokens.data<std::int32_t>();
    const T* from = table.data<T>();
    T* to = y.data<T>();
    const std::int64_t held = table.dim(0);
    parallel_for(row_count(y), [=](std::int64_t r) {
      const std::int64_t row = ids[r] - first_row;
      if (row >= 0 && row < held) {
        body::copy_row(body::OneLane{}, n, from + row * n, to + r * n);
      } else {
        body::zero_row(body::OneLane{}, n, to + r * n);
      }
    });
  });
}

void embedding_gradient(const Device&, const Tensor& tokens, const Tensor& dy, std::int64_t first_row,
                        const Tensor& dtable) {
  const std::int64_t n = row_length(dy);
  const std::int64_t rows = row_count(dy);
  with_storage(dy, [&]<typename T>(T) {
    const std::int32_t* ids = tokens.data<std::int32_t>();
    const T* from = dy.data<T>();
    auto* to = dtable.data<Real<T>>();
    const std::int64_t held = dtable.dim(0);
    parallel_chunks(n, kTableChunk, [=](std::int64_t first, std::int64_t count) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t row = ids[r] - first_row;
        if (row < 0 || row >= held) continue;
        body::add_row(body::OneLane{}, count, from + r * n + first, to + row * n + first);
      }
    });
  });
}

void add_positions(const Device&, const Tensor& x, const Tensor& table, const SequencePart& part) {
  const std::int64_t n = x.dim(2);
  const std::int64_t batch = x.dim(1);
  with_storage(x, [&]<typename T>(T) {
    T* xs = x.data<T>();
    const T* rows = table.data<T>();
    parallel_for(x.dim(0) * batch, [=](std::int64_t r) {
      body::add_row(body::OneLane{}, n, rows + part.position(r / batch) * n, xs + r * n);
    });
  });
}

void add_positions_gradient(const Device&, const Tensor& dy, const SequencePart& part, const Tensor& dtable) {
  const std::int64_t n = dy.dim(2);
  const std::int64_t batch = dy.dim(1);
  with_storage(dy, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    auto* rows = dtable.data<Real<T>>();
    parallel_for(dy.dim(0), [=](std::int64_t t) {
      for (std::int64_t b = 0; b < batch; ++b) {
        body::add_row(body::OneLane{}, n, dys + (t * batch + b) * n, rows + part.position(t) * n);
      }
    });
  });
}

}  // namespace cuboid::kernels::cpu
