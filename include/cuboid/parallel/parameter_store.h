// A rank's parameters: values, gradients and master copies of its pipeline stages in buckets, whole or sharded over the
// ranks that hold copies as the ZeRO stage says (arXiv 1910.02054): over dp, ep and cp for dense parameters, over dp
// and cp for those of experts. Who may touch what, and when, is decided here; who computes, in ops; who sends, in
// gradients.h.
//
//   ZeRO   values        gradients     master, moments
//   0      whole         whole         whole
//   1      whole         whole         shard
//   2      whole         shard         shard
//   3      shard         shard         shard
//
// A sharded value or gradient exists whole only for a while: between gather and free, or while one micro-batch's
// gradient is formed. Those copies count as communication memory.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/comm/communicator.h"
#include "cuboid/ops/tape.h"
#include "cuboid/parallel/parameter_layout.h"

namespace cuboid {

struct ParameterBucket {
  BucketLayout layout;
  Communicator* copies = nullptr;      ///< ranks that hold copies of it, or own a part of it each
  std::vector<Parameter*> parameters;  ///< one a place
  Tensor values;                       ///< (elements); undefined while only the shard exists
  Tensor value_shard;                  ///< (part), own part of the values; with ZeRO 3 memory of its own
  Tensor gradients;                    ///< (elements) float32; undefined while only the shard exists
  Tensor gradient_shard;               ///< (part), own part of the gradients; from ZeRO 2 on memory of its own
  Tensor master;  ///< (part) float32 values that the optimizer updates; value_shard if that is float32
  Work gather;    ///< of the values, in flight
  int users = 0;  ///< ZeRO 3: stages that have gathered the values and not yet freed them
  /// First element of the owned part.
  std::int64_t owned_begin() const { return owned_part * layout.part_elements(); }
  int owned_part = 0;
};

/// The ranks with copies of parameters, by what they have in common.
struct CopyGroups {
  /// A data-parallel group without experts, or whose ranks all hold all of them.
  CopyGroups(Communicator& data) : dense(&data), experts(&data) {}
  CopyGroups(Communicator& dense_copies, Communicator& expert_copies, int rank, int size)
      : dense(&dense_copies), experts(&expert_copies), ep_rank(rank), ep_size(size) {}

  Communicator* dense;    ///< all of them: Groups::copies
  Communicator* experts;  ///< those with the same experts: Groups::expert_copies
  int ep_rank = 0;
  int ep_size = 1;
};

/// A stretch of a parameter's shard that this rank owns among those with copies: elements [begin, begin + count) of the
/// shard, which lie at `at` in the bucket's owned part.
struct OwnedStretch {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::int64_t at = 0;
};

struct ParameterOptions {
  DType dtype = DType::float32;         ///< of the values
  DType reduce_dtype = DType::float32;  ///< in which float32 gradients travel between ranks: float32 or bfloat16
  int zero = 0;
  std::int64_t bucket_bytes = 4 << 20;
};

class ParameterStore {
 public:
  /// Allocates what the ZeRO stage keeps for the whole run; values undefined, gradients zero.
  /// @param copies  the ranks with copies; parts of buckets are theirs
  ParameterStore(const Device& device, const ParameterTable& table, const std::vector<StageBlocks>& stages, int tp_rank,
                 int tp_size, const CopyGroups& copies, const ParameterOptions& options);

  /// Without copies on other ranks.
  ParameterStore(const Device& device, const ParameterTable& table, const std::vector<StageBlocks>& stages, int tp_rank,
                 int tp_size, const ParameterOptions& options = {});

  const Device& device() const { return device_; }
  std::deque<ParameterBucket>& buckets() { return buckets_; }
  const std::deque<ParameterBucket>& buckets() const { return buckets_; }
  /// All parameters of this rank in table order.
  const std::vector<Parameter*>& all() const { return all_; }
  /// Null if the parameter does not live on this rank.
  Parameter* find(std::string_view name) const;
  ParameterBucket& bucket_of(const Parameter& parameter) const { return *bucket_of_.at(&parameter); }
  /// What of the parameter this rank owns: all of it without sharding; count may be 0.
  OwnedStretch owned(const Parameter& parameter) const;
  /// True if the values are those of another parameter on this rank.
  bool shares_values(const Parameter& parameter) const { return bucket_of(parameter).layout.shares_values; }

  int tp_rank() const { return tp_rank_; }
  int tp_size() const { return tp_size_; }
  int zero() const { return options_.zero; }
  /// The type in which gradients of a type travel between ranks that add them.
  DType message_type(DType gradients) const { return gradients == DType::float32 ? options_.reduce_dtype : gradients; }
  /// True on exactly one of the ranks of copies() that own an element of the parameter: sums over what each rank owns
  /// and counts must be added over copies().
  bool counts(const Parameter& parameter) const {
    const ParameterBucket& bucket = bucket_of(parameter);
    return bucket.layout.parts > 1 || bucket.copies->rank() == 0;
  }
  /// All ranks with copies of dense parameters.
  Communicator& copies() const { return *copies_.dense; }

  /// Starts a step: gradients to zero.
  void zero_gradients();
  /// Makes the parameter's gradient exist, zero where it is new: before something is added to it.
  void acquire_gradient(Parameter& parameter);
  /// From ZeRO 2 on: frees the whole bucket's gradient, whose sum now lies in the shard.
  void release_gradient(ParameterBucket& bucket);

  /// ZeRO 3: starts to gather a stage's values / waits for them / frees them. Nothing to do otherwise.
  void unshard(int stage);
  void await_values(int stage);
  void reshard(int stage);

  /// Values from float32 numbers: elements [begin, begin + count) of the parameter's shard, and the master copy of
  /// those owned here.
  void write_values(const Parameter& parameter, std::int64_t begin, std::int64_t count, const float* numbers);
  /// Fills the values from the parameters' initialisers: each element a function of seed, name and global index.
  void initialize(std::uint64_t seed);
  /// After the optimizer has changed masters and own values: values whole on every rank that keeps them whole.
  void publish();

 private:
  ParameterStore(const Device& device, const ParameterTable& table, const std::vector<StageBlocks>& stages, int tp_rank,
                 int tp_size, std::unique_ptr<Communicator> alone, const ParameterOptions& options);
  void allocate(ParameterBucket& bucket);
  std::vector<ParameterBucket*> value_buckets(int stage);
  void attach_values(ParameterBucket& bucket);
  void attach_gradients(ParameterBucket& bucket);
  Tensor owned_part(const ParameterBucket& bucket, const Tensor& whole) const;

  Device device_;
  ParameterOptions options_;
  int tp_rank_;
  int tp_size_;
  std::unique_ptr<Communicator> alone_;  // where no group was given
  CopyGroups copies_;
  std::deque<Parameter> storage_;
  std::deque<ParameterBucket> buckets_;
  std::vector<Parameter*> all_;
  std::map<std::string, Parameter*, std::less<>> by_name_;
  std::map<const Parameter*, ParameterBucket*> bucket_of_;
};

}  // namespace cuboid
