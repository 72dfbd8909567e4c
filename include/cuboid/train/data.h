// Which tokens a sample holds. A sample is a window of seq_len + 1 tokens; the batch of a step is chosen by global
// sample index, so that it does not depend on the grid (law 1). Every rank may hold its own SampleSource or share one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cuboid/formats/tokens.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

/// Sample i of the stream is tokens[i·T : i·T+T+1]: inputs the first T, targets the last T. Of the n samples the last
/// round(F·n) are validation, the others training. Step s of global batch G takes the training samples s·G … s·G+G-1;
/// global sample g is sample g mod N of epoch g div N (N training samples), sequential or permuted anew each epoch.
class SampleSource {
 public:
  /// @param seq_len  T  @param vocab  V, every token id is below  @param seed  keys the shuffled order
  /// @throws Error{request} with all reasons: files that cannot be read, fewer than T+1 tokens, ids >= V, a validation
  ///         fraction outside [0,1) or that leaves no training or no validation sample, a mask token outside the
  ///         vocabulary, a mask file whose size is not the number of tokens.
  SampleSource(const DataConfig& data, std::int64_t seq_len, std::int64_t vocab, std::uint64_t seed);

  std::int64_t training_samples() const { return training_; }
  std::int64_t validation_samples() const { return validation_; }
  std::int64_t seq_len() const { return seq_len_; }
  const TokenStream& stream() const { return stream_; }

  /// Inputs (T) and targets (T) of a global sample >= 0 of the training stream; masked targets are kIgnore (-100). Safe
  /// to call from many threads.
  void training(std::int64_t global_sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  /// The same of validation sample i. @pre 0 <= i < validation_samples()
  void validation(std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  /// Which sample of the stream a global sample of training is.
  std::int64_t stream_sample(std::int64_t global_sample) const;

 private:
  void window(std::int64_t sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

  TokenStream stream_;
  std::shared_ptr<const MappedFile> mask_;  ///< one byte a token of the stream; null: none
  std::int64_t seq_len_ = 0;
  std::int64_t training_ = 0;
  std::int64_t validation_ = 0;
  DataOrder order_ = DataOrder::sequential;
  std::uint64_t seed_ = 0;
  std::int32_t mask_token_ = -1;  ///< -1: none (ids are not negative)
};

}  // namespace cuboid
