// One collective operation among the threads of a process: what each member contributed, and the work cut into chunks
// that any member may take. Whoever is awake works, so a late member does not wait for sleeping ones; and since a chunk
// is always computed from the inputs in rank order, the result does not depend on who did it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuboid/comm/communicator.h"

#include "cuda/shared_gpu.h"
#include "wait_word.h"

namespace cuboid::detail {

class Group;

enum class CallKind : std::uint8_t { all_reduce, reduce_scatter, all_gather, all_to_all, broadcast, barrier, split };

/// What a member asks for; all members must ask for the same.
struct Call {
  CallKind kind{};
  std::int64_t count = 0;  ///< elements: of the whole (all_reduce, broadcast), of one part (the others)
  DType dtype = DType::float32;
  ReduceOp reduce = ReduceOp::sum;
  int root = 0;
  bool on_host = true;  ///< where its tensors are
  friend bool operator==(const Call&, const Call&) = default;
};

/// "all_reduce (sum) of 12 float32".
std::string to_string(const Call& call);

/// What a member tells split, and what it gets.
struct SplitMember {
  int color = -1;
  int key = 0;
  std::string name;
  std::shared_ptr<Group> group;  ///< null for color -1
  int rank = 0;
};

class Operation {
 public:
  /// Values of phase. Complete and failed are final.
  enum Phase : std::uint32_t { gathering, running, complete, failed };

  Operation(const Call& asked, std::uint64_t number, int size);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  /// So little to do that waking others would cost more.
  bool small() const;
  /// Takes and runs chunks until none is left; completes the operation if the last to finish one.
  /// @pre phase is at least running, or the caller is the last to arrive
  void help();

  const Call call;
  const std::uint64_t sequence;  ///< counted from 0 on its communicator
  WaitWord phase;

  // Written under the group's mutex while gathering; constant afterwards.
  std::vector<std::byte*> in;   ///< by member
  std::vector<std::byte*> out;  ///< by member
  std::vector<bool> arrived;
  int arrivals = 0;
  int first_to_arrive = 0;
  std::string mismatch;  ///< why it failed
  std::vector<SplitMember> split;
  std::vector<StreamMark> ready;  ///< by member: when its tensors may be used; of device memory only
  StreamMark done;                ///< when results are there; written by the last to arrive

  /// Keeps a member's memory until that member has waited, or, when it gave up, until nobody works on it.
  struct Held {
    std::shared_ptr<Buffer> in;
    std::shared_ptr<Buffer> out;
  };
  std::vector<Held> held;  ///< element r belongs to member r's thread

 private:
  void run_chunk(std::int64_t chunk) const;

  std::int64_t elements_per_chunk_;
  std::int64_t chunks_per_part_;
  std::int64_t chunks_;
  alignas(64) std::atomic<std::int64_t> next_ = 0;
  alignas(64) std::atomic<std::int64_t> done_ = 0;
};

}  // namespace cuboid::detail
