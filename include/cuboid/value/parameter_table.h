// One row a parameter. The table drives allocation, tensor split, gradient buckets, gradient norm, checkpoints, name
// conversion and planned memory: whoever needs a fact about a parameter reads it here.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/core/shape.h"

namespace cuboid {

enum class Initializer : std::uint8_t { zeros, ones, normal };

/// A run of the split dim that is cut over the tensor axis by itself (the q, k and v parts of a fused projection; gate
/// and up of a gated MLP). A piece is made of equal `unit`s that are never cut: heads of head_dim rows, or single rows.
struct Piece {
  std::string name = {};    ///< "q", "k", "v", "gate", "up"; empty for a parameter of one piece
  std::int64_t units = 0;   ///< how many (heads, or rows)
  std::int64_t unit = 1;    ///< rows each
  bool replicable = false;  ///< fewer units than ranks: neighbouring ranks hold the same unit (KV heads)
  bool uneven = false;      ///< units need not divide by tp: sizes differ by at most one (vocabulary)
  std::int64_t rows() const { return units * unit; }
};

struct ParameterInfo {
  std::string name;           ///< global name, "layers.3.attention.qkv.weight"
  Shape shape;                ///< global shape
  int block = 0;              ///< position in the pipeline: 0 embedding, 1…L layers, L+1 head
  int split_dim = -1;         ///< dim cut over the tensor axis; -1: replicated
  std::vector<Piece> pieces;  ///< cover split_dim in order; empty iff split_dim is -1
  /// Replicated, but a tensor rank's gradient is only its own heads' share: the ranks' gradients are added.
  bool partial = false;
  std::string tied_with;  ///< name of the parameter whose values this one shares (an output head); or empty
  int expert = -1;        ///< the expert of its layer that it belongs to; -1: dense, on every expert rank
  int experts = 0;        ///< how many experts the layer has, if it belongs to one
  bool decay = false;     ///< weight decay acts on it (matrices and embeddings)
  Initializer initializer = Initializer::zeros;
  double init_std = 0;
};

/// Global indices [begin, begin + count) of the split dim.
struct Range {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

/// What tensor rank `rank` of `size` owns of the split dim, a range a piece, in the local order.
/// An uneven piece of n units gives rank r the units [r·n/size, (r+1)·n/size). A replicable piece of n < size units
/// gives rank r the unit r·n/size. @pre the split is possible (see check_split)
std::vector<Range> owned_ranges(const ParameterInfo& parameter, int rank, int size);

/// Shape of that rank's shard.
Shape shard_shape(const ParameterInfo& parameter, int rank, int size);

/// True if the parameter lives on that rank of `size` along the expert axis: dense ones on all, expert i of n on rank
/// i·size/n. @pre size divides the number of experts
bool on_expert_rank(const ParameterInfo& parameter, int rank, int size);

/// How many tensor ranks hold each element of the piece: 1, or size / units for a replicated piece.
int replicas(const Piece& piece, int size);

/// A stretch of consecutive elements of a shard that are consecutive in the global tensor too (both row-major).
struct Run {
  std::int64_t local = 0;   ///< index of its first element in the shard
  std::int64_t global = 0;  ///< index of its first element in the global tensor
  std::int64_t count = 0;
  int piece = 0;  ///< index into pieces
};
/// The shard of that rank as runs in local order: what initialisation, loading and hashing walk.
std::vector<Run> shard_runs(const ParameterInfo& parameter, int rank, int size);

/// True on exactly one of the tensor ranks that hold copies of a piece: the one that counts it in norms and hashes.
bool counts_piece(const ParameterInfo& parameter, int piece, int rank, int size);

/// Half-open range of units that rank r of size owns of an uneven split of n: sizes differ by at most one.
Range even_share(std::int64_t n, int rank, int size);

class ParameterTable {
 public:
  ParameterTable() = default;
  explicit ParameterTable(std::vector<ParameterInfo> rows) : rows_(std::move(rows)) {}
  const std::vector<ParameterInfo>& rows() const { return rows_; }
  /// @throws std::logic_error for an unknown name
  const ParameterInfo& at(std::string_view name) const;
  /// Number of distinct weights: a tied parameter counts once.
  std::int64_t total() const;
  /// Those that take part in a token's forward: all but the experts that it is not sent to.
  std::int64_t active(std::int64_t experts_per_token) const;
  /// Distinct weights of one block (0 embedding, 1…L layers, L+1 head).
  std::int64_t total_of_block(int block) const;

 private:
  std::vector<ParameterInfo> rows_;
};

}  // namespace cuboid
