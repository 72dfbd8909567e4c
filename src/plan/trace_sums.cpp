#include <algorithm>

#include "cuboid/core/error.h"
#include "cuboid/plan/trace.h"

namespace cuboid {

TraceOptions trace_options(const RunConfig& run, int tp_rank) {
  TraceOptions options;
  options.tp = run.grid.degree(Axis::tp);
  options.cp = run.grid.degree(Axis::cp);
  options.ep = run.grid.degree(Axis::ep);
  options.tp_rank = tp_rank;
  options.sequence_parallel = run.sequence_parallel;
  options.recompute = run.recompute;
  options.micro_batch = run.micro_batch;
  options.seq_len = run.seq_len;
  options.dtype = run.dtype;
  options.reduce_dtype = run.reduce_dtype;
  options.dropout = run.dropout;
  return options;
}

int ModelTrace::kind_of_layer(int layer) const {
  if (layers.size() == 1 && layer >= 0 && layer < layers.front().repeat) return 0;
  for (std::size_t kind = 0; kind < layers.size(); ++kind) {
    // A kind's layers ascend.
    if (std::binary_search(layers[kind].layers.begin(), layers[kind].layers.end(), layer)) {
      return static_cast<int>(kind);
    }
  }
  CUBOID_CHECK(false, "no layer " + std::to_string(layer));
  return -1;
}

namespace {

template <typename F>
double sum_over_kernels(const TracedPass& pass, F value) {
  double sum = 0;
  for (const TracedEvent& event : pass.events) {
    if (const auto* kernel = std::get_if<TracedKernel>(&event)) sum += value(*kernel);
  }
  return sum;
}

}  // namespace

double flops(const TracedPass& pass) {
  return sum_over_kernels(pass, [](const TracedKernel& kernel) { return kernel.flops; });
}

double model_flops(const TracedPass& pass) {
  return sum_over_kernels(
      pass, [](const TracedKernel& kernel) { return kernel.phase == TracedPhase::recompute ? 0 : kernel.flops; });
}

double bytes_moved(const TracedPass& pass) {
  return sum_over_kernels(pass, [](const TracedKernel& kernel) { return kernel.bytes_read + kernel.bytes_written; });
}

}  // namespace cuboid
