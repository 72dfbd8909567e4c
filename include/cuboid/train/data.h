// Which tokens a sample holds. A sample is a window of seq_len + 1 tokens; the batch of a step is chosen by global
// sample index, so that it does not depend on the grid (law 1). Every rank may hold its own SampleSource or share one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/formats/tokens.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

class Blend;

/// Sample i of a stream is tokens[i·T : i·T+T+1]: inputs the first T, targets the last T. Of the n samples the last
/// round(F·n) are validation, the others training. Step s of global batch G takes the training samples s·G … s·G+G-1;
/// global sample g is sample g mod N of epoch g div N (N training samples), sequential or permuted anew each epoch.
/// Of a blend (paths WEIGHT PATH WEIGHT PATH …) every set is a stream of its own with such epochs, and global samples
/// are dealt out over the sets by weight.
class SampleSource {
 public:
  /// @param seq_len  T  @param vocab  V, every token id is below  @param seed  keys the shuffled order
  /// @throws Error{request} with all reasons: files that cannot be read, fewer than T+1 tokens, ids >= V, a validation
  ///         fraction outside [0,1) or that leaves no training or no validation sample, a mask token outside the
  ///         vocabulary, a mask file whose size is not the number of tokens.
  SampleSource(const DataConfig& data, std::int64_t seq_len, std::int64_t vocab, std::uint64_t seed);

  /// Of all sets.
  std::int64_t training_samples() const;
  std::int64_t validation_samples() const;
  std::int64_t seq_len() const { return seq_len_; }
  std::size_t sets() const { return sets_.size(); }
  const TokenStream& stream(std::size_t set = 0) const { return sets_[set].stream; }

  /// Inputs (T) and targets (T) of a global sample >= 0 of the training stream; masked targets are kIgnore (-100). Safe
  /// to call from many threads.
  void training(std::int64_t global_sample, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  /// The same of validation sample i. @pre 0 <= i < validation_samples()
  void validation(std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  /// Which set a global sample of training is from (always 0 without a blend), and which sample of its stream it is.
  std::size_t set_of(std::int64_t global_sample) const;
  std::int64_t stream_sample(std::int64_t global_sample) const;

 private:
  struct Set {
    TokenStream stream;
    std::int64_t training = 0;
    std::int64_t validation = 0;
  };
  struct Place {
    std::size_t set = 0;
    std::int64_t sample = 0;
  };
  Set open_set(const DataConfig& data, const std::string& path, std::int64_t vocab, Problems& problems) const;
  Place place_of(std::int64_t global_sample) const;
  void window(const Place& place, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

  std::vector<Set> sets_;
  std::shared_ptr<const Blend> blend_;      ///< null: one set
  std::shared_ptr<const MappedFile> mask_;  ///< one byte a token of the stream; null: none
  std::int64_t seq_len_ = 0;
  DataOrder order_ = DataOrder::sequential;
  std::uint64_t seed_ = 0;
  std::int32_t mask_token_ = -1;  ///< -1: none (ids are not negative)
};

}  // namespace cuboid
