#include "cuboid/comm/recorder.h"

#include <algorithm>

#include <fmt/format.h>

namespace cuboid {
namespace {

thread_local Recorder* g_recorder = nullptr;

// Waits for a recorded communication, and says so meanwhile.
template <typename Pending>
auto wait_recorded(Recorder& recorder, std::uint64_t number, Pending& pending) {
  recorder.waits(number);
  if constexpr (std::is_same_v<Pending, Incoming>) {
    Tensor tensor = pending.wait();
    recorder.goes_on();
    return tensor;
  } else {
    pending.wait();
    recorder.goes_on();
  }
}

class TracedCommunicator final : public Communicator {
 public:
  TracedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Recorder> recorder)
      : Communicator(inner->rank(), inner->size(), inner->name()),
        inner_(std::move(inner)),
        recorder_(std::move(recorder)) {}

  Work all_reduce(const Tensor& in, const Tensor& out, ReduceOp op) override {
    return recorded("all_reduce", out, inner_->all_reduce(in, out, op));
  }
  Work reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op) override {
    return recorded("reduce_scatter", in, inner_->reduce_scatter(in, out, op));
  }
  Work all_gather(const Tensor& in, const Tensor& out) override {
    return recorded("all_gather", out, inner_->all_gather(in, out));
  }
  Work all_to_all(const Tensor& in, const Tensor& out) override {
    return recorded("all_to_all", in, inner_->all_to_all(in, out));
  }
  Work all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& sent, const Tensor& out,
                    const std::vector<std::int64_t>& received) override {
    return recorded("all_to_all_v", in, inner_->all_to_all_v(in, sent, out, received));
  }
  Work broadcast(const Tensor& tensor, int root) override {
    return recorded("broadcast", tensor, inner_->broadcast(tensor, root));
  }
  void check() const override { inner_->check(); }
  void barrier() override {
    recorder_->waits(recorder_->started("barrier", name(), 0));
    inner_->barrier();
    recorder_->goes_on();
  }
  Work send(Tensor tensor, int to, int tag) override {
    const auto bytes = static_cast<std::int64_t>(tensor.bytes());
    Work work = inner_->send(std::move(tensor), to, tag);
    recorder_->started("send", name(), bytes, to);
    return work;
  }
  Incoming recv(Shape shape, DType dtype, int from, int tag) override {
    const auto bytes = shape.elements() * static_cast<std::int64_t>(size_of(dtype));
    auto pending = std::make_shared<Incoming>(inner_->recv(std::move(shape), dtype, from, tag));
    const std::uint64_t number = recorder_->started("recv", name(), bytes, from);
    return Incoming([pending, recorder = recorder_, number] { return wait_recorded(*recorder, number, *pending); });
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name_of_part) override {
    recorder_->waits(recorder_->started("split", name(), 0));
    auto part = inner_->split(color, key, name_of_part);
    recorder_->goes_on();
    return part ? traced(std::move(part), recorder_) : nullptr;
  }

 private:
  Work recorded(const char* operation, const Tensor& tensor, Work work) {
    const std::uint64_t number = recorder_->started(operation, name(), static_cast<std::int64_t>(tensor.bytes()));
    auto pending = std::make_shared<Work>(std::move(work));
    return Work([pending, recorder = recorder_, number] { wait_recorded(*recorder, number, *pending); });
  }

  std::unique_ptr<Communicator> inner_;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace

std::uint64_t Recorder::started(const char* operation, const std::string& group, std::int64_t bytes, int peer) {
  const std::scoped_lock lock(mutex_);
  last_[count_ % kKept] = {operation, group, bytes, peer, sequences_[group]++};
  return count_++;
}

void Recorder::waits(std::uint64_t number) {
  const std::scoped_lock lock(mutex_);
  waiting_ = true;
  since_ = Clock::now();
  // Long past ones are forgotten: at least the kind of wait is known.
  waited_for_ = count_ - number <= kKept ? last_[number % kKept] : Communication{"an early communication", "?"};
}

void Recorder::goes_on() {
  const std::scoped_lock lock(mutex_);
  waiting_ = false;
}

void Recorder::set_action(std::string action) {
  const std::scoped_lock lock(mutex_);
  action_ = std::move(action);
}

std::string Recorder::describe(const Communication& c) {
  std::string text = c.operation;
  if (c.bytes > 0) text += fmt::format(" of {} bytes", c.bytes);
  if (c.peer >= 0)
    text += fmt::format(" {} member {}", std::string_view(c.operation) == "send" ? "to" : "from", c.peer);
  return text + fmt::format(" on \"{}\" (communication {} there)", c.group, c.sequence);
}

std::string Recorder::line() const {
  const std::scoped_lock lock(mutex_);
  std::string text = fmt::format("rank {} ", rank_);
  if (waiting_) {
    const double seconds = std::chrono::duration<double>(Clock::now() - since_).count();
    text += fmt::format("waits {:.1f} s for {}", seconds, describe(waited_for_));
  } else {
    text += "computes";
  }
  if (!action_.empty()) text += ", in action " + action_;
  if (count_ > 0) text += "; last started: " + describe(last_[(count_ - 1) % kKept]);
  return text;
}

std::string Recorder::report() const {
  std::string text = line() + "\n";
  const std::scoped_lock lock(mutex_);
  for (std::uint64_t i = count_ > kKept ? count_ - kKept : 0; i < count_; ++i) {
    text += fmt::format("  {} {}\n", i, describe(last_[i % kKept]));
  }
  return text;
}

Recorder* recorder_of_this_thread() {
  return g_recorder;
}

void set_recorder_of_this_thread(Recorder* recorder) {
  g_recorder = recorder;
}

std::unique_ptr<Communicator> traced(std::unique_ptr<Communicator> inner, std::shared_ptr<Recorder> recorder) {
  return std::make_unique<TracedCommunicator>(std::move(inner), std::move(recorder));
}

}  // namespace cuboid
