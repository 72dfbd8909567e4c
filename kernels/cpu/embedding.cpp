#include "kernels/body/embedding.h"

#include "cuboid/kernels/kernels.h"

#include "kernels/body/heads.h"
#include "kernels/cpu/launch.h"

namespace cuboid::kernels {
namespace {

// Columns of one chunk when rows may meet in one row of the table: the chunk, not the row, is what threads share out.
constexpr std::int64_t kTableChunk = 256;

// The table's type is that of its rows; a gradient's is the type that sums are made in.
void check_table(const Tensor& rows, const Tensor& table, DType dtype, const char* name) {
  CUBOID_CHECK(
      table.defined() && table.shape().rank() == 2 && table.dtype() == dtype && table.dim(1) == row_length(rows),
      std::string(name) + ": table and rows differ in type or length");
}

void check_positions(const Tensor& x, const Tensor& table, DType dtype, std::int64_t first, const char* name) {
  CUBOID_CHECK(x.defined() && x.shape().rank() == 3, std::string(name) + ": (T,B,C) is expected");
  check_table(x, table, dtype, name);
  CUBOID_CHECK(first >= 0 && first + x.dim(0) <= table.dim(0),
               std::string(name) + ": positions " + std::to_string(first) + "+" + std::to_string(x.dim(0)) +
                   " of a table of " + std::to_string(table.dim(0)));
}

}  // namespace

void embedding(const Device&, const Tensor& tokens, const Tensor& table, std::int64_t first_row, const Tensor& y) {
  const std::int64_t n = row_length(y);
  check_table(y, table, y.dtype(), "embedding");
  expect(tokens, DType::int32, row_count(y), "embedding: tokens");
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
  check_table(dy, dtable, compute_type(dy.dtype()), "embedding_gradient");
  expect(tokens, DType::int32, rows, "embedding_gradient: tokens");
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

void add_positions(const Device&, const Tensor& x, const Tensor& table, std::int64_t first_position) {
  check_positions(x, table, x.dtype(), first_position, "add_positions");
  const std::int64_t n = x.dim(2);
  const std::int64_t batch = x.dim(1);
  with_storage(x, [&]<typename T>(T) {
    T* xs = x.data<T>();
    const T* rows = table.data<T>() + first_position * n;
    parallel_for(x.dim(0) * batch,
                 [=](std::int64_t r) { body::add_row(body::OneLane{}, n, rows + r / batch * n, xs + r * n); });
  });
}

void add_positions_gradient(const Device&, const Tensor& dy, std::int64_t first_position, const Tensor& dtable) {
  check_positions(dy, dtable, compute_type(dy.dtype()), first_position, "add_positions_gradient");
  const std::int64_t n = dy.dim(2);
  const std::int64_t batch = dy.dim(1);
  with_storage(dy, [&]<typename T>(T) {
    const T* dys = dy.data<T>();
    auto* rows = dtable.data<Real<T>>() + first_position * n;
    parallel_for(dy.dim(0), [=](std::int64_t t) {
      for (std::int64_t b = 0; b < batch; ++b) {
        body::add_row(body::OneLane{}, n, dys + (t * batch + b) * n, rows + t * n);
      }
    });
  });
}

}  // namespace cuboid::kernels
