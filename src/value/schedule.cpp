#include "cuboid/value/schedule.h"

#include <algorithm>
#include <array>

namespace cuboid {
namespace {

constexpr std::array<const char*, 12> kLetters = {"F",      "B",      "I",       "W",       "SEND_F",      "RECV_F",
                                                  "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "STEP"};

}  // namespace

std::string to_string(const Action& action) {
  std::string text = action.stage < 0 ? "" : std::to_string(action.stage);
  text += kLetters[static_cast<std::size_t>(action.kind)];
  if (action.micro_batch >= 0) text += std::to_string(action.micro_batch);
  return text;
}

bool computes(ActionKind kind) {
  return kind <= ActionKind::weight_gradient;
}

bool transfers(ActionKind kind) {
  return kind >= ActionKind::send_forward && kind <= ActionKind::recv_backward;
}

bool makes_input_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::input_gradient;
}

bool makes_weight_gradient(ActionKind kind) {
  return kind == ActionKind::backward || kind == ActionKind::weight_gradient;
}

std::vector<int> Schedule::rank_of_stage() const {
  std::vector<int> owner(static_cast<std::size_t>(std::max(stages, 0)), -1);
  for (int rank = 0; rank < ranks(); ++rank) {
    for (const Action& action : rows[static_cast<std::size_t>(rank)]) {
      if (!computes(action.kind) || action.stage < 0 || action.stage >= stages) continue;
      int& of = owner[static_cast<std::size_t>(action.stage)];
      if (of < 0) of = rank;
    }
  }
  return owner;
}

}  // namespace cuboid
