// The contract that every communicator keeps (self, threads; later mpi, nccl). A communicator joins a fixed set of
// ranks; it knows no axis of the grid. tests/contract is this page as code.
//
// - Every member calls the same collectives in the same order with equal counts and types. Members have equal rights;
//   results are the same bits on every member, and reductions add in ascending rank order.
// - A call starts the operation and returns a handle; the caller must wait() on it, and not touch the buffers before.
//   Handles may be waited in any order, also after later operations were started.
// - `out` may be `in` (for all_gather and reduce_scatter: in may be the rank's own part of out, or the reverse).
// - Counts may be 0 and need not divide by anything. Elements: float32, float64, bfloat16 (summed in float, rounded
//   once), int32, int64.
// - Members whose calls differ (operation, count, type, root; not the counts of all_to_all_v) all get Error{failed}
// that names two of them and their
//   calls. A wait for a rank whose function has returned throws Error{failed}, too.
// - A rank that fails aborts the world: every wait on any member throws Aborted at once, so that nobody hangs.
// - A wait longer than the world's deadline throws Error{deadline} that names the operation and who is missing.
#pragma once

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cuboid/runtime/device.h"

namespace cuboid {

enum class ReduceOp { sum, max };

/// Thrown by waits after another rank failed. Not the first cause: launchers report that one.
struct Aborted : std::runtime_error {
  Aborted() : std::runtime_error("another rank failed") {}
};

/// An operation in flight. Move-only; a default-made one is complete.
class Work {
 public:
  Work() = default;
  explicit Work(std::function<void()> finish) : finish_(std::move(finish)) {}
  Work(Work&& other) noexcept : finish_(std::exchange(other.finish_, nullptr)) {}
  Work& operator=(Work&& other) noexcept {
    finish_ = std::exchange(other.finish_, nullptr);
    return *this;
  }
  /// Blocks until the operation is complete on this rank. Further calls return at once.
  void wait() {
    if (auto finish = std::exchange(finish_, nullptr)) finish();
  }

 private:
  std::function<void()> finish_;
};

/// A message in flight.
class Incoming {
 public:
  explicit Incoming(std::function<Tensor()> finish) : finish_(std::move(finish)) {}
  /// Blocks until the message is here. Call once.
  Tensor wait() { return std::exchange(finish_, nullptr)(); }

 private:
  std::function<Tensor()> finish_;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// What messages call it: "tp", "dp", "stage 1 to 2".
  const std::string& name() const { return name_; }

  /// out[i] = reduction over members of in[i]. Shapes (n) and (n).
  virtual Work all_reduce(const Tensor& in, const Tensor& out, ReduceOp op) = 0;
  /// out = part rank() of the reduction. Shapes (size·n) and (n).
  virtual Work reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op) = 0;
  /// out = all members' in, in rank order. Shapes (n) and (size·n).
  virtual Work all_gather(const Tensor& in, const Tensor& out) = 0;
  /// Part j of in goes to member j; part i of out comes from member i. Shapes (size·n); out may not overlap in.
  virtual Work all_to_all(const Tensor& in, const Tensor& out) = 0;
  /// The same with parts of any sizes, in elements and one after the other: to member j go sent[j] elements of in, from
  /// member i come received[i] of out. Members may send each other different numbers; what one expects is what the
  /// other sends, or its wait throws std::logic_error that names both.
  virtual Work all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& sent, const Tensor& out,
                            const std::vector<std::int64_t>& received) = 0;
  /// Everybody's `tensor` becomes root's.
  virtual Work broadcast(const Tensor& tensor, int root) = 0;
  /// Returns when every member has called it.
  virtual void barrier() = 0;

  /// Sends to another member. Messages of one sender with one tag arrive in order. The tensor is given away: where the
  /// caller held the only reference to its buffer, a backend in one process hands over the memory itself (to the
  /// receiver's account, category activations); otherwise a copy travels. Does not wait for the receiver.
  /// @pre to != rank()
  virtual Work send(Tensor tensor, int to, int tag) = 0;
  /// Starts to receive; the shape and type must equal the sender's (a mismatch throws std::logic_error with both).
  virtual Incoming recv(Shape shape, DType dtype, int from, int tag) = 0;

  /// Throws Aborted if another rank of the world has failed. For who waits for something else than a communicator.
  virtual void check() const {}

  /// A communicator of the members that pass the same color ≥ 0, ordered by key (ties by rank). Members that pass -1
  /// get null. Collective over this communicator. `name` is for messages.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;

 protected:
  Communicator(int rank, int size, std::string name) : rank_(rank), size_(size), name_(std::move(name)) {}

 private:
  int rank_;
  int size_;
  std::string name_;
};

/// Convenience: in place and waited for.
inline void all_reduce_in_place(Communicator& comm, const Tensor& t, ReduceOp op = ReduceOp::sum) {
  comm.all_reduce(t, t, op).wait();
}

/// The communicator of a single rank.
std::unique_ptr<Communicator> make_self_communicator(const Device& device, const std::string& name = "self");

}  // namespace cuboid
