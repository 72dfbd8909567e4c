// What makes replicas one model: gradients summed over the data axis in buckets as they fill, then everything that has
// to be added between tensor and pipeline ranks exactly once, and the global norm.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cuboid/comm/communicator.h"
#include "cuboid/parallel/parameter_store.h"

namespace cuboid {

/// The gradients of one stage on their way through the data axis.
class GradientBuckets {
 public:
  /// Cuts the stage's flat gradient into buckets of whole parameters, at least `bucket_bytes` each where they suffice,
  /// from the last parameter (whose gradient is complete first) to the first.
  GradientBuckets(StageParameters& stage, Communicator& data, std::int64_t bucket_bytes);

  /// The parameter's gradient is complete on this rank. Starts the reduction of its bucket when that is full; buckets
  /// start in their fixed order, the same on every data-parallel rank.
  void ready(const Parameter& parameter);
  /// Starts what has not started and waits for all: the gradients are sums over the data axis. Ready for the next step.
  void finish();

 private:
  struct Bucket {
    Tensor gradients;
    int parameters = 0;
    int missing = 0;
    Work work;
  };
  void start_full_buckets();
  Communicator& data_;
  std::vector<Bucket> buckets_;
  std::unordered_map<const Parameter*, std::size_t> bucket_of_;
  std::size_t started_ = 0;
};

/// Adds up gradients that are partial over the tensor axis: replicated parameters under sequence parallelism (each rank
/// saw its part of the sequence) and key/value heads that several ranks hold.
class TensorPartialGradients {
 public:
  /// Collective over the tensor group.
  TensorPartialGradients(const Device& device, const ParameterTable& table, ParameterStore& store, Communicator& tensor,
                         bool sequence_parallel);
  void reduce();

 private:
  struct Part {
    Tensor gradient;
    Communicator* comm;
  };
  Device device_;
  std::map<int, std::unique_ptr<Communicator>> sharing_;  // by number of copies: ranks that hold the same KV heads
  std::vector<Part> parts_;
};

/// Adds the two uses of a tied parameter (embedding and head), wherever they live, so that both hold the sum.
/// @param ends  first and last stage's ranks; null where one rank holds both, or on ranks that hold neither
void add_tied_gradients(const Device& device, const ParameterTable& table, const ParameterStore& store,
                        Communicator* ends);

/// Σ gradient² of every parameter of the model, each global element once, in table order; a tied parameter's entry is
/// 0. The same numbers on every rank. Summed in double over fixed blocks, so they do not depend on the pipeline axis.
std::vector<double> gradient_squares(const Device& device, const ParameterTable& table, const ParameterStore& store,
                                     Communicator& tensor, Communicator& pipeline);

}  // namespace cuboid
