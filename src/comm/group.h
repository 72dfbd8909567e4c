// The state that the members of one in-process communicator share.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "mailbox.h"
#include "operation.h"
#include "world.h"

namespace cuboid::detail {

class Group {
 public:
  /// @param world_ranks  element r = number in the world of member r: what messages call it
  Group(std::shared_ptr<World> world, std::vector<int> world_ranks, std::string name);

  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::shared_ptr<World>& world() const { return world_; }
  int world_rank(int rank) const { return world_ranks_[rank]; }
  /// "`what` of communicator "tp" (member 1 of 4 waits)".
  std::string describe(int rank, const std::string& what) const;

  /// Member `rank` enters its next operation. Does not wait. The last to arrive sets it running.
  /// @param ready  of device memory: when the tensors may be used
  std::shared_ptr<Operation> start(int rank, const Call& call, const Tensor& in, const Tensor& out,
                                   const SplitMember& choice = {}, StreamMark ready = {});
  /// Waits until the operation is complete, working on it.
  /// @throws Error{failed} if the members' calls differ or one has ended without calling; Error{deadline}; Aborted
  void finish(int rank, Operation& operation) const;

  void send(int rank, Message message, int to, int tag);
  std::uint64_t claim_message(int rank, int from, int tag);
  /// Waits for a claimed message. `what` describes it. @throws Error{failed}, Error{deadline}, Aborted
  Message receive(int rank, int from, int tag, std::uint64_t claimed, const std::string& what);

 private:
  void note_mismatch(Operation& operation, int rank, const Call& call) const;
  void form_groups(Operation& operation) const;
  void run_on_gpu(Operation& operation);
  void wait_for_arrivals(int rank, Operation& operation) const;
  /// "rank 2", "ranks 2, 5": those who have not arrived, or only those of them that never will.
  std::string missing(const Operation& operation, bool ended) const;

  const std::shared_ptr<World> world_;
  const std::vector<int> world_ranks_;
  const std::string name_;

  mutable std::mutex mutex_;
  // Operations that some members have not entered yet, oldest first. Members enter in order, so they leave in order.
  std::deque<std::shared_ptr<Operation>> gathering_;
  std::uint64_t oldest_ = 0;                         // sequence number of gathering_.front()
  std::vector<std::uint64_t> entered_;               // by member: operations entered so far
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;  // by receiver
  std::mutex gpu_mutex_;
  std::unique_ptr<SharedGpu> gpu_;  // made with the first operation on device memory
};

/// The view of member `rank`.
std::unique_ptr<Communicator> make_threads_communicator(std::shared_ptr<World> world, std::shared_ptr<Group> group,
                                                        int rank, const Device& device, const std::string& name);

}  // namespace cuboid::detail
