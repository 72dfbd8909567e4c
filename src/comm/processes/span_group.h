// A communicator whose members live in several processes: the part of it that one process has. Its ranks meet in
// memory; once all of them have called a collective, the process sends each other process one parcel with everything
// that one needs of it. Large reductions of groups with several members a process go through the processes one after
// the other instead (span_reduce.cpp). Either way sums are added in ascending order of members, with the same bits as
// in one process.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../group.h"
#include "../mailbox.h"
#include "../world.h"
#include "transport.h"

namespace cuboid::detail {

class Exchange;
class SpanGroup;

/// What a member tells split, and what it gets: a group inside this process or one that spans processes, or neither.
struct SpanSplit {
  int color = -1;
  int key = 0;
  std::string name;
  std::uint64_t candidate = 0;  ///< id of the new group if this member is its first
  std::shared_ptr<Group> local;
  std::shared_ptr<SpanGroup> span;
  int rank = 0;
};

struct SpanOperation {
  enum Phase : std::uint32_t { gathering, complete, failed };

  SpanOperation(std::uint64_t number, std::size_t locals, std::size_t processes)
      : sequence(number),
        in(locals),
        out(locals),
        held(locals),
        arrived(locals),
        split(locals),
        contributions(processes),
        contributed(processes) {}

  const std::uint64_t sequence;
  bool called = false;  ///< call is known
  Call call;
  int caller = 0;  ///< member that first called it so
  WaitWord phase;
  std::string mismatch;

  // By local member
  std::vector<std::byte*> in, out;
  std::vector<Operation::Held> held;
  std::vector<bool> arrived;
  std::vector<SpanSplit> split;
  std::size_t arrivals = 0;
  StreamMark done;  // never set: tensors are on the host

  // By process of the group
  std::vector<Parcel> contributions;
  std::vector<bool> contributed;
  std::size_t contributors = 0;

  bool combined = false;        ///< what the contributions bring is done
  std::int64_t chunks = 0;      ///< partial sums to add to and results to take, still to come
  std::vector<Parcel> waiting;  ///< chunks that came before the last local member
};

class SpanGroup : public std::enable_shared_from_this<SpanGroup> {
 public:
  /// @param ranks  element m = world rank of member m; process p has ranks p·ranks_per_process and on
  SpanGroup(Exchange& exchange, std::shared_ptr<World> world, std::vector<int> ranks, int ranks_per_process,
            std::uint64_t id, std::string name);

  std::uint64_t id() const { return id_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  int world_rank(int member) const { return ranks_[static_cast<std::size_t>(member)]; }
  std::size_t local_index(int member) const { return static_cast<std::size_t>(local_index_[member]); }
  bool is_local(int member) const { return local_index_[static_cast<std::size_t>(member)] >= 0; }
  const std::shared_ptr<World>& world() const { return world_; }
  std::string describe(int member, const std::string& what) const;

  /// As Group's.
  std::shared_ptr<SpanOperation> start(int member, const Call& call, const Tensor& in, const Tensor& out,
                                       const SpanSplit& choice = {}, const StreamMark& ready = {});
  void finish(int member, SpanOperation& operation);
  void send(int member, Message message, int to, int tag);
  std::uint64_t claim_message(int member, int from, int tag) { return mailbox(member).claim(from, tag); }
  Message receive(int member, int from, int tag, std::uint64_t claimed, const std::string& what);

  /// Takes what another process sent to this group. The exchange's mutex is held.
  void handle(Parcel& parcel);

 private:
  using Ints = std::vector<int>;
  /// Consecutive members that live in one process.
  struct Stretch {
    int process = 0;  // index among the group's processes
    int first = 0, last = 0;
  };
  enum class Way { exchange, slices, stretches };  ///< how a reduction travels

  Mailbox& mailbox(int member) { return *mailboxes_[static_cast<std::size_t>(local_index_[member])]; }
  std::size_t locals() const { return members_[static_cast<std::size_t>(here_)].size(); }
  const Ints& own_members() const { return members_[static_cast<std::size_t>(here_)]; }
  int processes() const { return static_cast<int>(members_.size()); }
  Header header(const SpanOperation& operation, ParcelKind kind) const;
  Way way_of(const Call& call) const;

  std::shared_ptr<SpanOperation> operation(std::uint64_t sequence);
  void note_call(SpanOperation& operation, int member, const Call& call);
  void fail(SpanOperation& operation, const std::string& why);
  void launch(SpanOperation& operation);
  void advance(SpanOperation& operation);
  std::string missing(const SpanOperation& operation, bool ended) const;

  // Contributions
  std::shared_ptr<Buffer> contribution(const SpanOperation& operation, int process, std::int64_t& bytes) const;
  void combine(SpanOperation& operation);
  void combine_gather(SpanOperation& operation) const;
  void combine_all_to_all(SpanOperation& operation) const;
  void combine_broadcast(SpanOperation& operation) const;
  void combine_all_reduce(SpanOperation& operation) const;
  void combine_reduce_scatter(SpanOperation& operation) const;
  void combine_slice(SpanOperation& operation);
  void form_groups(SpanOperation& operation);
  std::vector<std::byte*> inputs_of_all(const SpanOperation& operation, std::int64_t local_offset,
                                        std::int64_t remote_offset, std::int64_t remote_stride) const;
  std::pair<std::int64_t, std::int64_t> slice(std::int64_t count, int process) const;

  // Chunks
  std::int64_t expected_chunks(const SpanOperation& operation) const;
  void start_chunks(SpanOperation& operation);
  void take_chunk(SpanOperation& operation, const Parcel& parcel);
  void add_stretch(SpanOperation& operation, int stage, std::int64_t part, std::int64_t offset,
                   const std::byte* partial);
  void pass_result(SpanOperation& operation, int place, std::int64_t part, std::int64_t offset,
                   const std::shared_ptr<Buffer>& chunk);

  Exchange& exchange_;
  const std::shared_ptr<World> world_;
  const Ints ranks_;
  const int ranks_per_process_;
  const std::uint64_t id_;
  const std::string name_;
  Ints process_of_member_;          // index among the group's processes
  Ints process_number_;             // of the job, by index
  std::vector<Ints> members_;       // by process, ascending
  Ints local_index_;                // by member; -1: elsewhere
  int here_ = 0;                    // index of this process
  bool in_stretches_ = false;       // large reductions go from stretch to stretch
  std::vector<Stretch> stretches_;  // in ascending order of members
  Ints way_back_;                   // processes as a result of the last stretch visits them

  std::map<std::uint64_t, std::shared_ptr<SpanOperation>> operations_;
  std::vector<std::uint64_t> entered_;               // by local member
  std::vector<std::unique_ptr<Mailbox>> mailboxes_;  // by local member
};

/// The view of a member in this process.
std::unique_ptr<Communicator> make_span_communicator(SpanGroup& group, int rank, const Device& device,
                                                     const std::string& name);

}  // namespace cuboid::detail
