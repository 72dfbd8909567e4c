#include "cuboid/parallel/parameter_layout.h"

#include <algorithm>

namespace cuboid {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t unit) {
  return (n + unit - 1) / unit * unit;
}

// Space of a parameter in its bucket: that of the largest shard of its tensor group.
std::int64_t space_of(const ParameterInfo& info, int tp_size) {
  std::int64_t largest = 0;
  for (int rank = 0; rank < tp_size; ++rank) {
    largest = std::max(largest, shard_shape(info, rank, tp_size).elements());
  }
  return round_up(largest, BucketLayout::kAlignment);
}

bool has_twin(const ParameterTable& table, const ParameterInfo& info) {
  return !info.tied_with.empty() || std::any_of(table.rows().begin(), table.rows().end(),
                                                [&](const auto& other) { return other.tied_with == info.name; });
}

}  // namespace

ParameterCut parameter_cut(const Grid& grid, const Coordinate& at, int zero) {
  return {.tp_rank = at[Axis::tp],
          .tp_size = grid.degree(Axis::tp),
          .ep_rank = at[Axis::ep],
          .ep_size = grid.degree(Axis::ep),
          .dense_parts = parts_of_buckets(zero, grid.copies()),
          .expert_parts = parts_of_buckets(zero, grid.expert_copies())};
}

BucketShare kept_share(const BucketLayout& bucket, int zero) {
  BucketShare share;
  share.gradients = zero < 2 ? bucket.elements : bucket.part_elements();
  if (bucket.shares_values) return share;
  share.values = zero < 3 ? bucket.elements : bucket.part_elements();
  share.masters = bucket.part_elements();
  return share;
}

std::vector<BucketLayout> lay_out_buckets(const ParameterTable& table, const std::vector<StageBlocks>& stages,
                                          const ParameterCut& cut, std::int64_t bucket_bytes) {
  const auto lives_here = [&](const std::string& name) {
    const int block = table.at(name).block;
    return std::any_of(stages.begin(), stages.end(), [&](const auto& s) { return block >= s.begin && block < s.end; });
  };
  std::vector<BucketLayout> buckets;
  for (const StageBlocks& stage : stages) {
    BucketLayout open_dense;
    BucketLayout open_experts;
    const auto close = [&](BucketLayout& open) {
      if (open.places.empty()) return;
      open.elements = round_up(open.elements, open.parts * BucketLayout::kAlignment);
      buckets.push_back(std::move(open));
      open = {};
    };
    for (auto row = table.rows().rbegin(); row != table.rows().rend(); ++row) {
      if (row->block < stage.begin || row->block >= stage.end) continue;
      if (!on_expert_rank(*row, cut.ep_rank, cut.ep_size)) continue;
      const bool expert = row->expert >= 0;
      BucketLayout& open = expert ? open_experts : open_dense;
      const bool alone = has_twin(table, *row);
      if (alone) close(open);
      open.stage = stage.stage;
      open.parts = expert ? cut.expert_parts : cut.dense_parts;
      open.experts = expert;
      open.shares_values = !row->tied_with.empty() && lives_here(row->tied_with);
      open.places.push_back({&*row, shard_shape(*row, cut.tp_rank, cut.tp_size), open.elements});
      open.elements += space_of(*row, cut.tp_size);
      if (alone || open.elements * 4 >= bucket_bytes) close(open);
    }
    close(open_experts);
    close(open_dense);
  }
  // Walked from the last parameter to the first: turn the places round, so that offsets ascend in table order.
  for (BucketLayout& bucket : buckets) {
    std::reverse(bucket.places.begin(), bucket.places.end());
    std::int64_t offset = 0;
    for (ParameterPlace& place : bucket.places) {
      place.offset = offset;
      offset += space_of(*place.info, cut.tp_size);
    }
  }
  return buckets;
}

}  // namespace cuboid
