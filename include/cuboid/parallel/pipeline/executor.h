// Walks one rank's row of a schedule: the only place where a schedule becomes work. It knows no model (Stage does the
// computing), no schedule by name, and no order but the row's.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "cuboid/parallel/groups.h"
#include "cuboid/value/schedule.h"

namespace cuboid {

/// What a stage of the pipeline can do with a micro-batch. Tensors at the boundary have boundary_shape().
class Stage {
 public:
  virtual ~Stage() = default;
  /// F. `input` is undefined on the first stage; the result is undefined on the last (the loss stays inside).
  virtual Tensor forward(int micro_batch, Tensor input) = 0;
  /// B: both gradients. `gradient` of the stage's output, undefined on the last stage; the result, the gradient of the
  /// stage's input, is undefined on the first.
  virtual Tensor backward(int micro_batch, Tensor gradient) = 0;
  /// I: as backward, but leaves the weight gradients for W.
  virtual Tensor input_gradient(int micro_batch, Tensor gradient) = 0;
  /// W: what the I of this micro-batch left.
  virtual void weight_gradient(int micro_batch) = 0;
  /// REDUCE_GRAD: ends the gradient's way over the data axis, as far as it is computed.
  virtual void reduce_gradient() = 0;
  /// UNSHARD: starts to gather the stage's parameters; computing waits for them. RESHARD frees them.
  virtual void unshard() = 0;
  virtual void reshard() = 0;
};

class Executor {
 public:
  /// @param schedule  with transfers; rows are pipeline ranks
  /// @param stages    this rank's stages by number
  /// @param boundary  shape and type of every message between stages
  Executor(const Schedule& schedule, int pipeline_rank, std::map<int, Stage*> stages, StageChannels* channels,
           Shape boundary, DType dtype);

  /// Runs the row once. `step` is called for the STEP action. Spans of the run replace earlier ones; compute actions
  /// that waited for a message are preceded by a RECV span of the waiting; apart from these, spans are the row, which
  /// is checked.
  /// @throws what a stage throws; a deadline names the action that waited
  void run(const std::function<void()>& step);

  const std::vector<Span>& spans() const { return spans_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::pair<int, int>;  // stage, micro-batch
  void perform(const Action& action, const std::function<void()>& step);
  void forward(const Action& action);
  void backward(const Action& action);
  Tensor take(std::map<Key, Tensor>& local, std::map<Key, Incoming>& incoming, const Action& action, ActionKind kind);
  void post_receive(const Action& action);
  void send(const Action& action);
  void check_order() const;
  int tag(const Action& action) const;
  double now() const { return std::chrono::duration<double>(Clock::now() - epoch_).count(); }

  const std::vector<Action>& row_;
  std::vector<int> rank_of_stage_;
  int rank_;
  int last_stage_;
  int micro_batches_;
  std::map<int, Stage*> stages_;
  StageChannels* channels_;
  Shape boundary_;
  DType dtype_;
  Clock::time_point epoch_ = Clock::now();

  std::map<Key, Tensor> outputs_;    // forward results that a SEND_F or a local stage will take; by consumer's key
  std::map<Key, Tensor> gradients_;  // input gradients that a SEND_B or a local stage will take; by consumer's key
  std::map<Key, Incoming> incoming_forward_;
  std::map<Key, Incoming> incoming_backward_;
  std::vector<Work> sends_;
  std::vector<Span> spans_;
};

}  // namespace cuboid
