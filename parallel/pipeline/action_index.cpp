#include "action_index.h"

#include "cuboid/core/error.h"

namespace cuboid::pipeline {
namespace {

constexpr int kIndexedKinds = static_cast<int>(ActionKind::recv_backward) + 1;

}  // namespace

ActionIndex::ActionIndex(const Schedule& schedule) : stages_(schedule.stages), micro_batches_(schedule.micro_batches) {
  places_.resize(static_cast<std::size_t>(kIndexedKinds) * static_cast<std::size_t>(stages_) *
                 static_cast<std::size_t>(micro_batches_));
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    const auto& row = schedule.rows[static_cast<std::size_t>(rank)];
    for (int position = 0; position < static_cast<int>(row.size()); ++position) {
      const Action& action = row[static_cast<std::size_t>(position)];
      if (!(computes(action.kind) || transfers(action.kind)) || !contains(action)) continue;
      Place& place = places_[slot(action)];
      if (!place.exists()) place = {rank, position};
    }
  }
}

Action ActionIndex::input_gradient(int stage, int micro_batch) const {
  const Action whole{ActionKind::backward, stage, micro_batch};
  return at(whole).exists() ? whole : Action{ActionKind::input_gradient, stage, micro_batch};
}

Needs ActionIndex::needs(const Action& action) const {
  Needs needs;
  const auto [kind, stage, micro_batch, overlapped] = action;
  switch (kind) {
    case ActionKind::forward:
      if (stage > 0) needs.add({ActionKind::forward, stage - 1, micro_batch});
      break;
    case ActionKind::backward:
    case ActionKind::input_gradient:
      needs.add({ActionKind::forward, stage, micro_batch});
      if (stage + 1 < stages_) needs.add(input_gradient(stage + 1, micro_batch));
      break;
    case ActionKind::weight_gradient:
      needs.add({ActionKind::input_gradient, stage, micro_batch});
      break;
    default:
      break;
  }
  return needs;
}

Action ActionIndex::partner(const Action& transfer) {
  switch (transfer.kind) {
    case ActionKind::send_forward:
      return {ActionKind::recv_forward, transfer.stage + 1, transfer.micro_batch};
    case ActionKind::recv_forward:
      return {ActionKind::send_forward, transfer.stage - 1, transfer.micro_batch};
    case ActionKind::send_backward:
      return {ActionKind::recv_backward, transfer.stage - 1, transfer.micro_batch};
    case ActionKind::recv_backward:
      return {ActionKind::send_backward, transfer.stage + 1, transfer.micro_batch};
    default:
      break;
  }
  CUBOID_CHECK(false, to_string(transfer) + " is no transfer");
}

Action ActionIndex::computing_end(const Action& transfer) const {
  const bool forward = transfer.kind == ActionKind::send_forward || transfer.kind == ActionKind::recv_forward;
  if (forward) return {ActionKind::forward, transfer.stage, transfer.micro_batch};
  return input_gradient(transfer.stage, transfer.micro_batch);
}

}  // namespace cuboid::pipeline
