// V-Half and V-Min: schedules repeated from one building block (arXiv 2405.15362, "Pipeline Parallelism with
// Controllable Memory"). A micro-batch's two F, two I and two W take one slot each of a period of six; every rank
// repeats them each period, so that what a rank holds is the block's lifespan over the period. With equal times and any
// p.
#include <algorithm>
#include <array>
#include <optional>

#include "cuboid/core/error.h"

#include "rows.h"

namespace cuboid::pipeline {
namespace {

constexpr int kPeriod = 6;

// Slots between neighbouring ranks, for F of chunk 0, F of chunk 1, I of chunk 1, I of chunk 0. The sum of all four,
// times p, is the lifespan of chunk 0 on rank 0: 4p slots of 12p (1F1B) for V-Min, 6p for V-Half.
using Offsets = std::array<int, 4>;

struct Block {
  Offsets offsets;
  std::array<int, 4> start;  // slot of the same four on rank 0

  // Slots of a rank's F0, F1, I1, I0: forwards go down the V and back up, gradients the same way round.
  std::array<int, 4> slots(int rank) const {
    return {start[0] + offsets[0] * rank, start[1] - offsets[1] * rank, start[2] + offsets[2] * rank,
            start[3] - offsets[3] * rank};
  }
  bool collides(int p, int parts) const {
    for (int rank = 0; rank < p; ++rank) {
      const auto slot = slots(rank);
      for (int a = 0; a < parts; ++a) {
        for (int b = 0; b < a; ++b) {
          if ((slot[static_cast<std::size_t>(a)] - slot[static_cast<std::size_t>(b)]) % kPeriod == 0) return true;
        }
      }
    }
    return false;
  }
};

// The earliest start of the parts such that each follows the one before it (at the turns of the V: on the last and on
// the first rank) and no two fall into one slot of the period on any rank.
std::optional<Block> place(Block block, int p, std::size_t part) {
  if (part == 4) return block;
  const int before = block.slots(part == 2 ? 0 : p - 1)[part - 1];
  // I of chunk 1 starts on rank 0 and goes down; the upward ones start on the last rank.
  const int earliest = before + 1 + (part == 2 ? 0 : block.offsets[part] * (p - 1));
  std::optional<Block> best;
  for (int shift = 0; shift < kPeriod; ++shift) {
    block.start[part] = earliest + shift;
    if (block.collides(p, static_cast<int>(part) + 1)) continue;
    const auto placed = place(block, p, part + 1);
    if (placed && (!best || placed->start[3] < best->start[3])) best = placed;
  }
  return best;
}

Row repeated_row(const RowShape& shape, const Offsets& offsets) {
  const auto block = place({offsets, {}}, shape.p, 1);
  CUBOID_CHECK(block.has_value(), "the block fits into its period for every number of ranks");
  const auto slots = block->slots(shape.r);

  struct Slot {
    int time;
    Action action;
  };
  std::array<bool, kPeriod> taken{};
  for (int slot : slots) taken[static_cast<std::size_t>(slot % kPeriod)] = true;
  // A W takes the first free slot after its I; chunk 1 comes first.
  const auto free_after = [&](int slot) {
    while (taken[static_cast<std::size_t>(slot % kPeriod)]) ++slot;
    taken[static_cast<std::size_t>(slot % kPeriod)] = true;
    return slot;
  };
  const int w1 = free_after(slots[2]);
  const int w0 = free_after(slots[3]);
  std::vector<Slot> all;
  for (int k = 0; k < shape.m; ++k) {
    const int base = kPeriod * k;
    const int s0 = v_stage(shape, 0);
    const int s1 = v_stage(shape, 1);
    all.push_back({base + slots[0], {ActionKind::forward, s0, k}});
    all.push_back({base + slots[1], {ActionKind::forward, s1, k}});
    all.push_back({base + slots[2], {ActionKind::input_gradient, s1, k}});
    all.push_back({base + w1, {ActionKind::weight_gradient, s1, k}});
    all.push_back({base + slots[3], {ActionKind::input_gradient, s0, k}});
    all.push_back({base + w0, {ActionKind::weight_gradient, s0, k}});
  }
  std::sort(all.begin(), all.end(), [](const Slot& a, const Slot& b) { return a.time < b.time; });
  Row row;
  for (const Slot& slot : all) row.push_back(slot.action);
  return row;
}

}  // namespace

Row v_half_row(const RowShape& shape) {
  return repeated_row(shape, {2, 1, 2, 1});
}

Row v_min_row(const RowShape& shape) {
  return repeated_row(shape, {1, 1, 1, 1});
}

}  // namespace cuboid::pipeline
