// What reads or writes by token or target: embeddings, cross-entropy and experts.
#include "kernels/dispatch/dispatch.h"

namespace cuboid::kernels {

// ---------------------------------------------------------------- embeddings

namespace {

// The table's type is that of its rows; a gradient's is the type that sums are made in.
void expect_table(const Tensor& rows, const Tensor& table, DType dtype, const char* name) {
  expect_floating(rows, name);
  CUBOID_CHECK(
      table.defined() && table.shape().rank() == 2 && table.dtype() == dtype && table.dim(1) == row_length(rows),
      std::string(name) + ": table and rows differ in type or length");
}

void expect_positions(const Tensor& x, const Tensor& table, DType dtype, const SequencePart& part, const char* name) {
  CUBOID_CHECK(x.defined() && x.shape().rank() == 3, std::string(name) + ": (T,B,C) is expected");
  expect_table(x, table, dtype, name);
  CUBOID_CHECK(part.first >= 0 && part.position(x.dim(0) - 1) < table.dim(0),
               std::string(name) + ": positions " + std::to_string(part.first) + " to " +
                   std::to_string(part.position(x.dim(0) - 1)) + " of a table of " + std::to_string(table.dim(0)));
}

}  // namespace

// A gather reads as many rows of the table as it writes, and a scatter changes as many.

void embedding(const Device& device, const Tensor& tokens, const Tensor& table, std::int64_t first_row,
               const Tensor& y) {
  expect_table(y, table, y.dtype(), "embedding");
  expect(tokens, DType::int32, row_count(y), "embedding: tokens");
  run(device, {"embedding", {&y, &tokens}, {&y}}, cpu::embedding, cuda::embedding, tokens, table, first_row, y);
}

void embedding_gradient(const Device& device, const Tensor& tokens, const Tensor& dy, std::int64_t first_row,
                        const Tensor& dtable) {
  expect_table(dy, dtable, compute_type(dy.dtype()), "embedding_gradient");
  expect(tokens, DType::int32, row_count(dy), "embedding_gradient: tokens");
  run(device, {"embedding_gradient", {&dy, &tokens, &dy}, {&dy}}, cpu::embedding_gradient, cuda::embedding_gradient,
      tokens, dy, first_row, dtable);
}

void add_positions(const Device& device, const Tensor& x, const Tensor& table, const SequencePart& part) {
  expect_positions(x, table, x.dtype(), part, "add_positions");
  const Tensor rows = table.narrow(0, x.dim(0));  // as many
  run(device, {"add_positions", {&x, &rows}, {&x}}, cpu::add_positions, cuda::add_positions, x, table, part);
}

void add_positions_gradient(const Device& device, const Tensor& dy, const SequencePart& part, const Tensor& dtable) {
  expect_positions(dy, dtable, compute_type(dy.dtype()), part, "add_positions_gradient");
  const Tensor rows = dtable.narrow(0, dy.dim(0));
  run(device, {"add_positions_gradient", {&dy, &rows}, {&rows}}, cpu::add_positions_gradient,
      cuda::add_positions_gradient, dy, part, dtable);
}

// ---------------------------------------------------------------- cross-entropy

void cross_entropy_statistics(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                              const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit) {
  expect_real(logits, "cross_entropy_statistics: logits");
  const std::int64_t rows = row_count(logits);
  CUBOID_CHECK(row_length(logits) > 0, "cross_entropy_statistics: no vocabulary");
  expect(targets, DType::int32, rows, "cross_entropy_statistics: targets");
  expect(row_max, logits.dtype(), rows, "cross_entropy_statistics: row_max");
  expect(row_sum, logits.dtype(), rows, "cross_entropy_statistics: row_sum");
  expect(target_logit, logits.dtype(), rows, "cross_entropy_statistics: target_logit");
  run(device, {"cross_entropy_statistics", {&logits, &targets}, {&row_max, &row_sum, &target_logit}},
      cpu::cross_entropy_statistics, cuda::cross_entropy_statistics, logits, targets, first_row, row_max, row_sum,
      target_logit);
}

void rescale_sum(const Device& device, const Tensor& local_max, const Tensor& global_max, const Tensor& row_sum) {
  expect_real(local_max, "rescale_sum: local_max");
  expect_like(global_max, local_max, "rescale_sum: global_max");
  expect_like(row_sum, local_max, "rescale_sum: row_sum");
  run(device, {"rescale_sum", {&local_max, &global_max, &row_sum}, {&row_sum}}, cpu::rescale_sum, cuda::rescale_sum,
      local_max, global_max, row_sum);
}

void cross_entropy_loss(const Device& device, const Tensor& row_max, const Tensor& row_sum, const Tensor& target_logit,
                        const Tensor& targets, const Tensor& losses) {
  expect_real(row_max, "cross_entropy_loss: row_max");
  const std::int64_t rows = row_max.elements();
  expect_like(row_sum, row_max, "cross_entropy_loss: row_sum");
  expect_like(target_logit, row_max, "cross_entropy_loss: target_logit");
  expect(targets, DType::int32, rows, "cross_entropy_loss: targets");
  CUBOID_CHECK(
      losses.defined() && losses.dtype() == DType::float64 && losses.elements() > 0 && rows % losses.elements() == 0,
      "cross_entropy_loss: losses are not float64, or do not divide " + std::to_string(rows) + " rows");
  run(device, {"cross_entropy_loss", {&row_max, &row_sum, &target_logit, &targets}, {&losses}}, cpu::cross_entropy_loss,
      cuda::cross_entropy_loss, row_max, row_sum, target_logit, targets, losses);
}

void cross_entropy_gradient(const Device& device, const Tensor& logits, const Tensor& targets, std::int64_t first_row,
                            const Tensor& row_max, const Tensor& row_sum, double factor, const Tensor& dlogits) {
  expect_real(logits, "cross_entropy_gradient: logits");
  const std::int64_t rows = row_count(logits);
  expect(targets, DType::int32, rows, "cross_entropy_gradient: targets");
  expect(row_max, logits.dtype(), rows, "cross_entropy_gradient: row_max");
  expect(row_sum, logits.dtype(), rows, "cross_entropy_gradient: row_sum");
  CUBOID_CHECK(
      dlogits.defined() && dlogits.elements() == logits.elements() && compute_type(dlogits.dtype()) == logits.dtype(),
      "cross_entropy_gradient: dlogits differs from logits in size or computes in another type");
  run(device, {"cross_entropy_gradient", {&logits, &targets, &row_max, &row_sum}, {&dlogits}},
      cpu::cross_entropy_gradient, cuda::cross_entropy_gradient, logits, targets, first_row, row_max, row_sum, factor,
      dlogits);
}

// ---------------------------------------------------------------- experts

void route(const Device& device, const Tensor& logits, const Tensor& probabilities, const Tensor& experts,
           const Tensor& weights, const Tensor& log_sum) {
  expect_real(logits, "route: logits");
  const std::int64_t n = row_length(logits);
  const std::int64_t rows = row_count(logits);
  const std::int64_t k = row_length(experts);
  CUBOID_CHECK(k >= 1 && k <= n, "route: " + std::to_string(k) + " of " + std::to_string(n) + " experts");
  expect_like(probabilities, logits, "route: probabilities");
  expect(experts, DType::int32, rows * k, "route: experts");
  expect(weights, logits.dtype(), rows * k, "route: weights");
  expect(log_sum, logits.dtype(), rows, "route: log_sum");
  run(device, {"route", {&logits}, {&probabilities, &experts, &weights, &log_sum}}, cpu::route, cuda::route, logits,
      probabilities, experts, weights, log_sum);
}

void route_gradient(const Device& device, const Tensor& dweights, const Tensor& probabilities, const Tensor& experts,
                    const Tensor& weights, const Tensor& log_sum, const Tensor& slope, double z,
                    const Tensor& dlogits) {
  expect_real(probabilities, "route_gradient: probabilities");
  const std::int64_t rows = row_count(probabilities);
  const std::int64_t k = row_length(experts);
  expect(dweights, probabilities.dtype(), rows * k, "route_gradient: dweights");
  expect(experts, DType::int32, rows * k, "route_gradient: experts");
  expect(weights, probabilities.dtype(), rows * k, "route_gradient: weights");
  expect(log_sum, probabilities.dtype(), rows, "route_gradient: log_sum");
  expect(slope, probabilities.dtype(), row_length(probabilities), "route_gradient: slope");
  expect_like(dlogits, probabilities, "route_gradient: dlogits");
  run(device, {"route_gradient", {&dweights, &probabilities, &experts, &weights, &log_sum, &slope}, {&dlogits}},
      cpu::route_gradient, cuda::route_gradient, dweights, probabilities, experts, weights, log_sum, slope, z, dlogits);
}

std::vector<std::int64_t> sort_by_expert(const Device& device, const Tensor& experts, std::int64_t count,
                                         const Tensor& slot, const Tensor& source) {
  expect(experts, DType::int32, experts.elements(), "sort_by_expert: experts");
  expect(slot, DType::int32, experts.elements(), "sort_by_expert: slot");
  expect(source, DType::int32, experts.elements(), "sort_by_expert: source");
  switch (device.kind()) {
    case DeviceKind::cpu:
      return cpu::sort_by_expert(device, experts, count, slot, source);
    case DeviceKind::cuda:
      return cuda::sort_by_expert(device, experts, count, slot, source);
    case DeviceKind::meta:
      return meta::sort_by_expert(device, {"sort_by_expert", {&experts}, {&slot, &source}}, experts.elements(), count);
  }
  return {};
}

void gather_rows(const Device& device, const Tensor& x, const Tensor& index, const Tensor& y) {
  expect_floating(x, "gather_rows: x");
  expect(index, DType::int32, index.elements(), "gather_rows: index");
  expect(y, x.dtype(), index.elements() * row_length(x), "gather_rows: y");
  run(device, {"gather_rows", {&y, &index}, {&y}}, cpu::gather_rows, cuda::gather_rows, x, index, y);
}

void combine_rows(const Device& device, const Tensor& rows, const Tensor& slot, const Tensor& weights,
                  const Tensor& y) {
  expect_floating(y, "combine_rows: y");
  const std::int64_t k = row_length(slot);
  expect(slot, DType::int32, row_count(y) * k, "combine_rows: slot");
  expect(rows, y.dtype(), row_count(y) * k * row_length(y), "combine_rows: rows");
  if (weights.defined()) expect(weights, compute_type(y.dtype()), row_count(y) * k, "combine_rows: weights");
  run(device, {"combine_rows", {&rows, &slot, &weights}, {&y}}, cpu::combine_rows, cuda::combine_rows, rows, slot,
      weights, y);
}

void combine_rows_gradient(const Device& device, const Tensor& dy, const Tensor& rows, const Tensor& slot,
                           const Tensor& weights, const Tensor& drows, const Tensor& dweights) {
  expect_floating(dy, "combine_rows_gradient: dy");
  const std::int64_t count = row_count(dy);
  const std::int64_t k = row_length(slot);
  const std::int64_t n = row_length(dy);
  const bool rounded = rows.defined() && rows.dtype() == dy.dtype();
  expect(rows, rounded ? dy.dtype() : compute_type(dy.dtype()), count * k * n, "combine_rows_gradient: rows");
  expect(slot, DType::int32, count * k, "combine_rows_gradient: slot");
  expect(weights, compute_type(dy.dtype()), count * k, "combine_rows_gradient: weights");
  expect(drows, dy.dtype(), count * k * n, "combine_rows_gradient: drows");
  expect(dweights, compute_type(dy.dtype()), count * k, "combine_rows_gradient: dweights");
  run(device, {"combine_rows_gradient", {&dy, &rows, &slot, &weights}, {&drows, &dweights}}, cpu::combine_rows_gradient,
      cuda::combine_rows_gradient, dy, rows, slot, weights, drows, dweights);
}

}  // namespace cuboid::kernels
