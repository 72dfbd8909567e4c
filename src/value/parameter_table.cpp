#include "cuboid/value/parameter_table.h"

#include <algorithm>

namespace cuboid {

Range even_share(std::int64_t n, int rank, int size) {
  const std::int64_t begin = n * rank / size;
  return {begin, n * (rank + 1) / size - begin};
}

bool on_expert_rank(const ParameterInfo& parameter, int rank, int size) {
  if (parameter.expert < 0) return true;
  CUBOID_CHECK(parameter.experts % size == 0,
               parameter.name + " cannot be placed on " + std::to_string(size) + " ranks");
  return parameter.expert / (parameter.experts / size) == rank;
}

int replicas(const Piece& piece, int size) {
  return piece.replicable && piece.units < size ? static_cast<int>(size / piece.units) : 1;
}

std::vector<Range> owned_ranges(const ParameterInfo& parameter, int rank, int size) {
  std::vector<Range> ranges;
  std::int64_t start = 0;
  for (const Piece& piece : parameter.pieces) {
    const int copies = replicas(piece, size);
    CUBOID_CHECK(piece.uneven || piece.units % (size / copies) == 0, parameter.name + " cannot be cut evenly");
    const Range units = even_share(piece.units, rank / copies, size / copies);
    ranges.push_back({start + units.begin * piece.unit, units.count * piece.unit});
    start += piece.rows();
  }
  return ranges;
}

Shape shard_shape(const ParameterInfo& parameter, int rank, int size) {
  Shape shape = parameter.shape;
  if (parameter.split_dim < 0) return shape;
  std::int64_t rows = 0;
  for (const Range& range : owned_ranges(parameter, rank, size)) rows += range.count;
  shape[parameter.split_dim] = rows;
  return shape;
}

std::vector<Run> shard_runs(const ParameterInfo& parameter, int rank, int size) {
  if (parameter.split_dim < 0) return {{0, 0, parameter.shape.elements(), 0}};
  // Elements before (outer) and after (inner) the split dim of a row-major tensor.
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  for (int i = 0; i < parameter.split_dim; ++i) outer *= parameter.shape[i];
  for (int i = parameter.split_dim + 1; i < parameter.shape.rank(); ++i) inner *= parameter.shape[i];
  const std::vector<Range> ranges = owned_ranges(parameter, rank, size);
  std::vector<Run> runs;
  std::int64_t local = 0;
  for (std::int64_t o = 0; o < outer; ++o) {
    for (std::size_t piece = 0; piece < ranges.size(); ++piece) {
      const std::int64_t count = ranges[piece].count * inner;
      const std::int64_t global = (o * parameter.shape[parameter.split_dim] + ranges[piece].begin) * inner;
      runs.push_back({local, global, count, static_cast<int>(piece)});
      local += count;
    }
  }
  return runs;
}

bool counts_piece(const ParameterInfo& parameter, int piece, int rank, int size) {
  if (parameter.split_dim < 0) return rank == 0;
  return rank % replicas(parameter.pieces[static_cast<std::size_t>(piece)], size) == 0;
}

const ParameterInfo& ParameterTable::at(std::string_view name) const {
  const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const auto& row) { return row.name == name; });
  CUBOID_CHECK(found != rows_.end(), "no parameter named " + std::string(name));
  return *found;
}

std::int64_t ParameterTable::total() const {
  std::int64_t sum = 0;
  for (const auto& row : rows_) sum += row.tied_with.empty() ? row.shape.elements() : 0;
  return sum;
}

std::int64_t ParameterTable::active(std::int64_t experts_per_token) const {
  std::int64_t dense = 0;
  std::int64_t visited = 0;
  for (const auto& row : rows_) {
    if (!row.tied_with.empty()) continue;
    if (row.expert < 0) {
      dense += row.shape.elements();
    } else if (row.expert == 0) {  // all experts of a layer are of one size
      visited += row.shape.elements() * experts_per_token;
    }
  }
  return dense + visited;
}

std::int64_t ParameterTable::total_of_block(int block) const {
  std::int64_t sum = 0;
  for (const auto& row : rows_) sum += row.block == block && row.tied_with.empty() ? row.shape.elements() : 0;
  return sum;
}

}  // namespace cuboid
