// A rank's shards of the parameters of its pipeline stages, in flat buffers: values in one, float32 gradients in
// another, both in the table's order, so that gradients are reduced in large pieces and memory is known before it is
// allocated.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/ops/tape.h"
#include "cuboid/value/parameter_table.h"

namespace cuboid {

/// The parameters of one stage: a run of rows of the store.
struct StageParameters {
  int stage = 0;
  std::vector<Parameter*> parameters;  ///< in table order
  Tensor gradients;                    ///< their gradients as one flat tensor, padding included (zeros)
};

class ParameterStore {
 public:
  /// Elements between the starts of neighbouring parameters are rounded up to this many (64 bytes of float32).
  static constexpr std::int64_t kAlignment = 16;

  /// @param blocks_of_stage  for each stage of this rank, ascending: its number and its blocks [begin, end)
  struct StageBlocks {
    int stage = 0;
    int begin = 0;
    int end = 0;
  };
  /// Allocates (values uninitialised, gradients zero). A tied parameter shares the values of its partner when that
  /// lives on this rank, but has a gradient of its own: the two uses are added once, at the end of the step.
  ParameterStore(const Device& device, const ParameterTable& table, const std::vector<StageBlocks>& stages, int tp_rank,
                 int tp_size, DType dtype);

  std::vector<StageParameters>& stages() { return stages_; }
  /// All parameters of this rank in table order.
  const std::vector<Parameter*>& all() const { return all_; }
  /// Null if the parameter does not live on this rank.
  Parameter* find(std::string_view name) const;
  /// True if the values are those of another parameter on this rank.
  bool shares_values(const Parameter& parameter) const;
  int tp_rank() const { return tp_rank_; }
  int tp_size() const { return tp_size_; }
  /// Gradients to zero: the start of a step.
  void zero_gradients();

  /// Fills the values from the parameters' initialisers: each element a function of seed, name and global index.
  void initialize(std::uint64_t seed);

 private:
  std::deque<Parameter> storage_;
  std::vector<Parameter*> all_;
  std::map<std::string, Parameter*, std::less<>> by_name_;
  std::vector<StageParameters> stages_;
  Tensor gradients_;
  int tp_rank_;
  int tp_size_;
};

}  // namespace cuboid
