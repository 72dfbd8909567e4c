// Where a rank's parameters lie: buckets of neighbouring parameters, and each bucket's cut over the ranks
// that hold copies. Pure
// arithmetic on the table, so that planned memory is allocated memory.
#pragma once

#include <vector>

#include "cuboid/value/grid.h"
#include "cuboid/value/parameter_table.h"

namespace cuboid {

/// Blocks [begin, end) of the model that a stage of this rank holds: 0 embedding, 1…L layers, L+1 head.
struct StageBlocks {
  int stage = 0;
  int begin = 0;
  int end = 0;
};

/// Where a rank stands among those that share out the parameters.
struct ParameterCut {
  int tp_rank = 0;
  int tp_size = 1;
  int ep_rank = 0;
  int ep_size = 1;
  int dense_parts = 1;   ///< ranks that each own a part of a dense bucket: dp × ep × cp, or 1 without ZeRO
  int expert_parts = 1;  ///< of an expert's: dp × cp, or 1
};

/// In how many parts buckets are cut over the ranks that hold copies.
inline int parts_of_buckets(int zero, int copies) {
  return zero > 0 ? copies : 1;
}

/// The cut of the rank at these coordinates.
ParameterCut parameter_cut(const Grid& grid, const Coordinate& at, int zero);

/// A parameter in its bucket.
struct ParameterPlace {
  const ParameterInfo* info = nullptr;  ///< row of the table
  Shape shape;                          ///< this rank's shard over the tensor axis
  std::int64_t offset = 0;              ///< of its first element in the bucket
};

/// Parameters that are reduced and gathered together: one flat range of elements. Part r of `parts` equal parts belongs
/// to data-parallel rank r when optimizer state, gradients or values are sharded.
struct BucketLayout {
  /// Parameters start at, and parts are multiples of, this many elements: 256 bytes of float32, the unit of the norm.
  static constexpr std::int64_t kAlignment = 64;

  int stage = 0;
  std::vector<ParameterPlace> places;  ///< in table order
  std::int64_t elements = 0;           ///< with padding; a multiple of parts · kAlignment
  int parts = 1;
  bool experts = false;        ///< holds experts' parameters, and no dense ones
  bool shares_values = false;  ///< a tied parameter whose partner's values live on this rank too
  std::int64_t part_elements() const { return elements / parts; }
};

/// Elements of a bucket that a rank keeps for the whole run. Masters are apart from the values only where the values
/// are not float32; each moment of the optimizer has as many elements as the masters.
struct BucketShare {
  std::int64_t values = 0;     ///< of the compute type; 0 if shared with a partner
  std::int64_t gradients = 0;  ///< float32
  std::int64_t masters = 0;    ///< float32; 0 if shared with a partner
};
BucketShare kept_share(const BucketLayout& bucket, int zero);

/// A stage's buckets in the order in which backward completes them: the last parameters first. A bucket is closed when
/// it holds `bucket_bytes` of float32. A parameter with a tied partner is a bucket of its own, so that both cut alike;
/// experts' parameters and dense ones lie apart, since other ranks hold copies of them.
/// Uneven shards (vocabulary) take the space of the largest, so that all ranks of a tensor group cut alike.
/// @pre the table outlives the layout
std::vector<BucketLayout> lay_out_buckets(const ParameterTable& table, const std::vector<StageBlocks>& stages,
                                          const ParameterCut& cut, std::int64_t bucket_bytes);

}  // namespace cuboid
