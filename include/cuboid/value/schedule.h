// A pipeline schedule is a value: for every pipeline rank the list of its actions in order. Generators and passes make
// and change it (parallel/pipeline), verify proves it, the executor walks one row of it, the simulator all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cuboid {

/// What a rank does next. The meanings are those of torch.distributed.pipelining's CSV.
enum class ActionKind : std::uint8_t {
  forward,          ///< F: run the stage on a micro-batch
  backward,         ///< B: input gradient and weight gradient together
  input_gradient,   ///< I
  weight_gradient,  ///< W
  send_forward,     ///< SEND_F: the stage's output, to the rank of stage + 1
  recv_forward,     ///< RECV_F: the stage's input, from the rank of stage - 1 (stage is the receiver's)
  send_backward,    ///< SEND_B: the gradient of the stage's input, to the rank of stage - 1
  recv_backward,    ///< RECV_B: the gradient of the stage's output, from the rank of stage + 1
  unshard,          ///< gather the stage's parameters (ZeRO-3)
  reshard,          ///< free the gathered parameters
  reduce_gradient,  ///< reduce the stage's gradients over the data axis; no micro-batch
  step,             ///< optimizer step of the whole rank; neither stage nor micro-batch
};

struct Action {
  ActionKind kind{};
  int stage = 0;         ///< global stage number, -1 where it has none
  int micro_batch = -1;  ///< -1 where it has none
  /// Runs together with the next action of the row: an F before a B or I, which the CSV writes "(0F7;7B3)OVERLAP_F_B".
  /// Running the two one after the other is right too, only slower.
  bool overlapped = false;
  friend bool operator==(const Action&, const Action&) = default;
};

/// "0F0", "1SEND_F3", "2REDUCE_GRAD": the cell notation of the CSV.
std::string to_string(const Action& action);

/// True for F, B, I, W: the actions that compute.
bool computes(ActionKind kind);
/// True for SEND_F, RECV_F, SEND_B, RECV_B.
bool transfers(ActionKind kind);
/// True for B and I: the actions that make the gradient of the stage's input.
bool makes_input_gradient(ActionKind kind);
/// True for B and W: the actions that make the gradients of the stage's weights.
bool makes_weight_gradient(ActionKind kind);

struct Schedule {
  std::string name;  ///< "1f1b", "gpipe", or the file it was read from
  int stages = 0;    ///< number of stages: ranks × virtual stages
  int micro_batches = 0;
  std::vector<std::vector<Action>> rows;  ///< rows[rank] = that rank's actions in order

  int ranks() const { return static_cast<int>(rows.size()); }
  /// rank_of_stage()[s] = the rank whose row computes stage s (-1: none).
  std::vector<int> rank_of_stage() const;
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

/// When an action ran, or would run, in seconds since the start of the row's first action or another common moment.
struct Span {
  Action action;
  double begin = 0;
  double end = 0;
};

}  // namespace cuboid
