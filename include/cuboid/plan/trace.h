// What a model does, kernel by kernel and message by message, found by running its own code on the meta device: one
// tensor-parallel rank's share of each kind of block, forward and backward. Costs, memory and plans follow from it; no
// formula a model family exists. What it leaves out is what depends on the grid outside a micro-batch: the pipeline's
// transfers, reductions over the data axis and the optimizer.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cuboid/comm/meta.h"
#include "cuboid/core/dtype.h"
#include "cuboid/runtime/traced_kernel.h"
#include "cuboid/value/grid.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// A collective of one rank. Transfers between pipeline stages are not in a trace.
struct TracedCommunication {
  using Operation = Collective;
  Axis axis = Axis::tp;
  Operation operation = Operation::all_reduce;
  int ranks = 1;  ///< of the group
  /// As nccl-tests counts size: of the whole buffer (all_reduce, broadcast, all_to_all), of the unsplit side
  /// (reduce_scatter: input, all_gather: output).
  double bytes = 0;
  DType dtype = DType::float32;
  TracedPhase phase = TracedPhase::forward;
};

using TracedEvent = std::variant<TracedKernel, TracedCommunication>;

/// Bytes on one rank by what they are for, exactly as the same code allocates them (Category in runtime/memory.h).
struct TracedBytes {
  std::int64_t activations = 0;
  std::int64_t communication = 0;
  std::int64_t workspace = 0;
  std::int64_t total() const { return activations + communication + workspace; }
  friend bool operator==(const TracedBytes&, const TracedBytes&) = default;
};

/// One pass over a block: its events in order and the memory it needs meanwhile.
struct TracedPass {
  std::vector<TracedEvent> events;
  /// Most bytes of each category during the pass, over what the rank held before the micro-batch entered this block:
  /// the block's input (or the gradient that comes in) and, in backward, the kept activations are in it. Categories
  /// need not peak at the same time.
  TracedBytes peak;
  std::int64_t peak_total = 0;  ///< most of the sum
};

/// A block's weights.
struct TracedParameters {
  std::int64_t total = 0;         ///< distinct weights of the whole model's block; tied ones belong to the embedding
  std::int64_t replicated = 0;    ///< of total: whole on every tensor rank (norms, biases of row-split layers)
  std::int64_t expert = 0;        ///< of total: belong to experts, cut over ep
  std::int64_t local = 0;         ///< elements on this rank, tied output matrices and copies of KV heads included
  std::int64_t local_expert = 0;  ///< of local
};

/// An embedding, a layer, or a head (final norm, output matrix, loss).
struct TracedBlock {
  int repeat = 1;           ///< how many such blocks the model has
  std::vector<int> layers;  ///< which: 0 … L-1; empty for embedding and head
  TracedPass forward;
  TracedPass backward;                    ///< B: both gradients
  TracedPass input_gradient;              ///< I, where the schedule splits backward …
  TracedPass weight_gradient;             ///< … and W
  TracedBytes kept;                       ///< what forward leaves for backward, its input included where that is kept
  TracedBytes kept_after_input_gradient;  ///< what I leaves for W
  TracedBytes resident;                   ///< what every stage with such a block keeps for the whole run: rotary tables
  std::int64_t output_bytes = 0;          ///< its result on this rank, what crosses a stage boundary; 0: head
  TracedParameters parameters;
};

/// What decides a rank's share of a micro-batch.
struct TraceOptions {
  int tp = 1;
  /// The share is that of the last context rank. All have equal bytes, and equal work under a plain causal mask; with a
  /// window the last, whose chunks lie in the middle of the sequence, has most.
  int cp = 1;
  int ep = 1;
  int tp_rank = 0;  ///< whose share: ranks differ where the vocabulary does not divide
  bool sequence_parallel = false;
  Recompute recompute = Recompute::none;
  std::int64_t micro_batch = 1;
  std::int64_t seq_len = 1024;
  DType dtype = DType::bfloat16;
  DType reduce_dtype = DType::float32;  ///< of partial sums of bfloat16 activations, as in RunConfig
  double dropout = 0;
  friend bool operator==(const TraceOptions&, const TraceOptions&) = default;
};

/// The share of a run's micro-batch that a rank of this tensor coordinate has.
TraceOptions trace_options(const RunConfig& run, int tp_rank = 0);

struct ModelTrace {
  TraceOptions options;
  TracedBlock embedding;
  std::vector<TracedBlock> layers;  ///< each kind once, in the order of their first layers
  TracedBlock head;
  std::int64_t total_parameters = 0;  ///< distinct weights of the whole model
  /// The kind of layer i: an index into layers.
  int kind_of_layer(int layer) const;
};

/// Runs one block of each kind on the meta device. Takes milliseconds for any size; equal arguments give equal traces.
/// @pre the model can be split like that
ModelTrace trace_model(const ModelConfig& model, const TraceOptions& options);

/// Sums over a pass.
double flops(const TracedPass& pass);
double model_flops(const TracedPass& pass);  ///< without what recompute adds
double bytes_moved(const TracedPass& pass);  ///< read and written by all kernels

}  // namespace cuboid
