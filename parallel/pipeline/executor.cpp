#include "cuboid/parallel/pipeline/executor.h"

#include <algorithm>

#include "cuboid/comm/recorder.h"
#include "cuboid/runtime/profiler_range.h"

namespace cuboid {

Executor::Executor(const Schedule& schedule, int pipeline_rank, std::map<int, Stage*> stages, StageChannels* channels,
                   Shape boundary, DType dtype)
    : row_(schedule.rows[static_cast<std::size_t>(pipeline_rank)]),
      rank_of_stage_(schedule.rank_of_stage()),
      rank_(pipeline_rank),
      last_stage_(schedule.stages - 1),
      micro_batches_(schedule.micro_batches),
      stages_(std::move(stages)),
      channels_(channels),
      boundary_(std::move(boundary)),
      dtype_(dtype) {}

void Executor::run(const std::function<void()>& step) {
  spans_.clear();
  spans_.reserve(2 * row_.size());
  epoch_ = Clock::now();
  Recorder* const recorder = recorder_of_this_thread();
  for (const Action& action : row_) {
    const std::string name = to_string(action);
    const ProfilerRange range(name);
    if (recorder) recorder->set_action(name);
    try {
      perform(action, step);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::deadline) throw;
      throw Error(error.kind(),
                  std::string(error.what()) + " (pipeline rank " + std::to_string(rank_) + ", action " + name + ")");
    }
  }
  for (Work& work : sends_) work.wait();
  sends_.clear();
  if (recorder) recorder->set_action("");
  CUBOID_CHECK(outputs_.empty() && gradients_.empty() && incoming_forward_.empty() && incoming_backward_.empty(),
               "a schedule left messages behind");
  check_order();
}

// What ran is the row, in its order: a RECV's span is its wait, and only where there was one.
void Executor::check_order() const {
  const auto receives = [](const Action& a) {
    return a.kind == ActionKind::recv_forward || a.kind == ActionKind::recv_backward;
  };
  auto scheduled = row_.begin();
  for (const Span& span : spans_) {
    if (receives(span.action)) continue;
    while (scheduled != row_.end() && receives(*scheduled)) ++scheduled;
    CUBOID_CHECK(scheduled != row_.end() && span.action == *scheduled,
                 to_string(span.action) + " ran where the schedule has " +
                     (scheduled == row_.end() ? "its end" : to_string(*scheduled)));
    ++scheduled;
  }
  CUBOID_CHECK(std::all_of(scheduled, row_.end(), receives), "a row did not run to its end");
}

void Executor::perform(const Action& action, const std::function<void()>& step) {
  switch (action.kind) {
    case ActionKind::forward:
      return forward(action);
    case ActionKind::backward:
    case ActionKind::input_gradient:
      return backward(action);
    case ActionKind::recv_forward:
    case ActionKind::recv_backward:
      return post_receive(action);
    case ActionKind::send_forward:
    case ActionKind::send_backward:
      return send(action);
    default:
      break;
  }
  const double begin = now();
  if (action.kind == ActionKind::weight_gradient) {
    stages_.at(action.stage)->weight_gradient(action.micro_batch);
  } else if (action.kind == ActionKind::reduce_gradient) {
    stages_.at(action.stage)->reduce_gradient();
  } else if (action.kind == ActionKind::unshard) {
    stages_.at(action.stage)->unshard();
  } else if (action.kind == ActionKind::reshard) {
    stages_.at(action.stage)->reshard();
  } else {
    step();
  }
  spans_.push_back({action, begin, now()});
}

void Executor::forward(const Action& action) {
  const Key key{action.stage, action.micro_batch};
  Tensor input;
  if (action.stage > 0) input = take(outputs_, incoming_forward_, action, ActionKind::recv_forward);
  const double begin = now();
  Tensor output = stages_.at(action.stage)->forward(action.micro_batch, std::move(input));
  spans_.push_back({action, begin, now()});
  if (action.stage < last_stage_) outputs_[{key.first + 1, key.second}] = std::move(output);
}

void Executor::backward(const Action& action) {
  const Key key{action.stage, action.micro_batch};
  Tensor gradient;
  if (action.stage < last_stage_) gradient = take(gradients_, incoming_backward_, action, ActionKind::recv_backward);
  const double begin = now();
  Stage& stage = *stages_.at(action.stage);
  Tensor result = action.kind == ActionKind::backward ? stage.backward(action.micro_batch, std::move(gradient))
                                                      : stage.input_gradient(action.micro_batch, std::move(gradient));
  spans_.push_back({action, begin, now()});
  if (action.stage > 0) gradients_[{key.first - 1, key.second}] = std::move(result);
}

// What a compute action consumes: left by a stage of this rank, or received (then the wait is a span of its own).
Tensor Executor::take(std::map<Key, Tensor>& local, std::map<Key, Incoming>& incoming, const Action& action,
                      ActionKind kind) {
  const Key key{action.stage, action.micro_batch};
  if (auto node = local.extract(key)) return std::move(node.mapped());
  auto node = incoming.extract(key);
  CUBOID_CHECK(!node.empty(), to_string(action) + " before its input");
  const Action wait{kind, action.stage, action.micro_batch};
  const ProfilerRange range("wait for " + to_string(wait));
  const double begin = now();
  Tensor received = node.mapped().wait();
  spans_.push_back({wait, begin, now()});
  return received;
}

int Executor::tag(const Action& action) const {
  // A message is known by its receiver's stage, the micro-batch and the direction.
  const bool forward = action.kind == ActionKind::send_forward || action.kind == ActionKind::recv_forward;
  int stage = action.stage;
  if (action.kind == ActionKind::send_forward) ++stage;
  if (action.kind == ActionKind::send_backward) --stage;
  return 2 * (stage * micro_batches_ + action.micro_batch) + (forward ? 0 : 1);
}

void Executor::post_receive(const Action& action) {
  const bool forward = action.kind == ActionKind::recv_forward;
  const int from = rank_of_stage_[static_cast<std::size_t>(action.stage + (forward ? -1 : 1))];
  auto& incoming = forward ? incoming_forward_ : incoming_backward_;
  incoming.emplace(Key{action.stage, action.micro_batch}, channels_->recv(boundary_, dtype_, from, tag(action)));
}

void Executor::send(const Action& action) {
  const bool forward = action.kind == ActionKind::send_forward;
  const Key consumer{action.stage + (forward ? 1 : -1), action.micro_batch};
  auto node = (forward ? outputs_ : gradients_).extract(consumer);
  CUBOID_CHECK(!node.empty(), to_string(action) + " before its tensor was computed");
  const double begin = now();
  const int to = rank_of_stage_[static_cast<std::size_t>(consumer.first)];
  sends_.push_back(channels_->send(std::move(node.mapped()), to, tag(action)));
  spans_.push_back({action, begin, now()});
}

}  // namespace cuboid
