// What makes replicas one model: gradients summed over the ranks with copies in buckets as they fill, then everything
// that has to be added between tensor and pipeline ranks exactly once, and the global norm. All of it works on the
// parts of buckets that this rank owns (everything, without ZeRO).
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "cuboid/core/exact_sum.h"
#include "cuboid/parallel/parameter_store.h"

namespace cuboid {

/// Gradients are kept and added up in float32. Between ranks they travel in the store's message_type: as bfloat16, a
/// bucket is rounded before it is sent, and the ranks' numbers are added in float and rounded once more.
///
/// The gradients of one stage on their way through the data axis: dense ones over dp, ep and cp, those of
/// experts over dp and cp, since an expert has seen the samples of all expert ranks already. ZeRO 0 sums each bucket
/// over the ranks, ZeRO 1 leaves each rank the sum of its part; both once a step, after the last micro-batch. From ZeRO
/// 2 on every micro-batch's gradient is reduced into the shard that is kept, and its buckets are freed: memory bought
/// with m times the traffic.
class GradientReduction {
 public:
  GradientReduction(const Device& device, ParameterStore& store, int stage);

  /// The parameter's gradient of a micro-batch is complete. Starts the reduction of its bucket when that is full and
  /// due: at the last micro-batch, or always from ZeRO 2 on. Buckets start in their fixed order on all data-parallel
  /// ranks.
  void ready(const Parameter& parameter, bool last_micro_batch);
  /// Waits for the reductions that are due. @param last  also starts those whose parameters took no part
  void finish(bool last);

 private:
  struct Pending {
    ParameterBucket* bucket;
    int missing = 0;
    bool started = false;
    Work work;
    Tensor message;   // what is sent, if it is not the bucket itself: until the work is done
    Tensor received;  // what the reduction leaves elsewhere than in its place: of another type, or to be added there
  };
  void start_full();
  void start(Pending& pending);
  void put(Pending& pending);

  Device device_;
  ParameterStore& store_;
  std::vector<Pending> pending_;  // in the order of completion
  std::map<const Parameter*, std::size_t> index_;
};

/// Adds up gradients that are partial over the tensor axis: replicated parameters under sequence parallelism (each rank
/// saw its part of the sequence), parameters that are marked partial (each rank saw its heads), and key/value heads
/// that several ranks hold.
class TensorPartialGradients {
 public:
  /// Collective over the tensor group.
  TensorPartialGradients(const Device& device, const ParameterTable& table, const ParameterStore& store,
                         Communicator& tensor, bool sequence_parallel);
  void reduce();

 private:
  struct Part {
    Tensor gradient;
    Communicator* comm;
  };
  Device device_;
  DType message_type_;
  std::map<int, std::unique_ptr<Communicator>> sharing_;  // by number of copies: ranks that hold the same KV heads
  std::vector<Part> parts_;
};

/// Adds the two uses of a tied parameter (embedding and head), wherever they live, so that both hold the sum.
/// @param ends  first and last stage's ranks; null where one rank holds both, or on ranks that hold neither
void add_tied_gradients(const Device& device, const ParameterTable& table, const ParameterStore& store,
                        Communicator* ends);

/// Global L2 norm of the gradient: each element of each distinct parameter once. Exact but for the rounding of sums
/// within lines of 256 bytes, so it does not depend on the pipeline, data, context or expert axis, the ZeRO stage, or
/// bucket sizes. The same on every rank; NaN if any element is not finite.
double gradient_norm(const Device& device, const ParameterStore& store, Communicator& tensor, Communicator& pipeline);

}  // namespace cuboid
