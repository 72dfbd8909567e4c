#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <emulated_cuda.h>
#include <nccl.h>

#include "comm/reduce.h"

namespace {

using cuboid::DType;
using cuboid::ReduceOp;

enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast, send, recv };

struct Call {
  Kind kind{};
  std::size_t count = 0;
  ncclDataType_t type{};
  ncclRedOp_t op{};
  int peer = 0;  // or root
  friend bool operator==(const Call&, const Call&) = default;
};

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt32:
      return DType::int32;
    case ncclInt64:
      return DType::int64;
    case ncclFloat32:
      return DType::float32;
    case ncclFloat64:
      return DType::float64;
    case ncclBfloat16:
      return DType::bfloat16;
  }
  return DType::float32;
}

struct Memory {
  std::byte* in = nullptr;
  std::byte* out = nullptr;
};

// One collective: what came, and whether it is done. Operations whose calls differ are never done.
struct Collective {
  std::vector<Call> calls;
  std::vector<Memory> memory;
  std::size_t arrived = 0;
  std::size_t left = 0;
  bool done = false;
};

// A message that waits for its receiver.
struct Parcel {
  Call call;
  const std::byte* from;
  bool taken = false;
};

struct Group {
  explicit Group(int count) : size(count), joined(static_cast<std::size_t>(count), false) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<bool> joined;
  std::vector<int> devices;
  int members = 0;
  bool shares_a_device = false;
  std::map<std::size_t, Collective> collectives;                               // by number
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Parcel>>> parcels;  // by sender and receiver
};

std::mutex g_mutex;
std::map<long, std::weak_ptr<Group>> g_groups;
long g_next_id = 1;

void combine(const Collective& c, int size) {
  const Call& call = c.calls.front();
  const auto count = static_cast<std::int64_t>(call.count);
  const std::size_t bytes = call.count * cuboid::size_of(dtype_of(call.type));
  std::vector<std::byte*> ins;
  std::vector<std::byte*> outs;
  for (const Memory& m : c.memory) {
    ins.push_back(m.in);
    outs.push_back(m.out);
  }
  const ReduceOp op = call.op == ncclSum ? ReduceOp::sum : ReduceOp::max;
  for (int r = 0; r < size; ++r) {
    const auto i = static_cast<std::size_t>(r);
    switch (call.kind) {
      case Kind::all_reduce:
        if (r == 0) cuboid::detail::reduce(dtype_of(call.type), op, ins, 0, outs, 0, count);
        break;
      case Kind::reduce_scatter:
        cuboid::detail::reduce(dtype_of(call.type), op, ins, r * count, {&outs[i], 1}, 0, count);
        break;
      case Kind::all_gather:
        for (std::byte* out : outs) std::memmove(out + i * bytes, ins[i], bytes);
        break;
      case Kind::broadcast:
        std::memmove(outs[i], ins[static_cast<std::size_t>(call.peer)], bytes);
        break;
      case Kind::send:
      case Kind::recv:
        break;
    }
  }
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  std::size_t next = 0;                                           // number of the next collective
  std::shared_ptr<bool> aborted = std::make_shared<bool>(false);  // under the group's mutex
};

namespace {

// What one ncclGroupEnd (or one call outside a group) queues: messages of a group travel together.
struct Queued {
  ncclComm_t comm;
  cudaStream_t stream;
  Call call;
  Memory memory;
};
thread_local int g_depth = 0;
thread_local std::vector<Queued> g_queued;

void run_collective(Group& group, std::unique_lock<std::mutex>& lock, const bool& aborted, int rank, std::size_t number,
                    const Queued& queued) {
  Collective& c = group.collectives[number];
  c.calls.resize(static_cast<std::size_t>(group.size));
  c.memory.resize(static_cast<std::size_t>(group.size));
  c.calls[static_cast<std::size_t>(rank)] = queued.call;
  c.memory[static_cast<std::size_t>(rank)] = queued.memory;
  if (++c.arrived == c.calls.size()) {
    bool agreed = true;
    for (const Call& call : c.calls) agreed = agreed && call == c.calls.front();
    if (agreed) {
      combine(c, group.size);
      c.done = true;
      group.changed.notify_all();
    }
  }
  group.changed.wait(lock, [&] { return c.done || aborted; });
  if (++c.left == c.calls.size()) group.collectives.erase(number);
}

// All messages of a group: sends are offered, receives taken in any order, and the group ends when all are through.
void run_messages(Group& group, std::unique_lock<std::mutex>& lock, const bool& aborted, int rank,
                  const std::vector<Queued>& messages) {
  std::vector<std::shared_ptr<Parcel>> sent;
  for (const Queued& q : messages) {
    if (q.call.kind != Kind::send) continue;
    sent.push_back(std::make_shared<Parcel>(Parcel{q.call, q.memory.in}));
    group.parcels[{rank, q.call.peer}].push_back(sent.back());
  }
  group.changed.notify_all();
  for (const Queued& q : messages) {
    if (q.call.kind != Kind::recv) continue;
    auto& waiting = group.parcels[{q.call.peer, rank}];
    group.changed.wait(lock, [&] { return !waiting.empty() || aborted; });
    if (aborted) return;
    const auto parcel = waiting.front();
    waiting.pop_front();
    if (parcel->call.count != q.call.count || parcel->call.type != q.call.type) {
      group.changed.wait(lock, [&] { return aborted; });  // what NCCL does then is undefined: a hang, here
      return;
    }
    std::memcpy(q.memory.out, parcel->from, q.call.count * cuboid::size_of(dtype_of(q.call.type)));
    parcel->taken = true;
    group.changed.notify_all();
  }
  for (const auto& parcel : sent) group.changed.wait(lock, [&] { return parcel->taken || aborted; });
}

void flush() {
  std::vector<Queued> all = std::exchange(g_queued, {});
  std::vector<Queued> messages;
  for (const Queued& q : all) {
    if (q.call.kind == Kind::send || q.call.kind == Kind::recv) {
      messages.push_back(q);
      continue;
    }
    emulated_cuda::enqueue(
        q.stream, [q, group = q.comm->group, aborted = q.comm->aborted, rank = q.comm->rank, number = q.comm->next++] {
          std::unique_lock lock(group->mutex);
          run_collective(*group, lock, *aborted, rank, number, q);
        });
  }
  if (messages.empty()) return;
  const ncclComm& comm = *messages.front().comm;
  emulated_cuda::enqueue(messages.front().stream,
                         [messages, group = comm.group, aborted = comm.aborted, rank = comm.rank] {
                           std::unique_lock lock(group->mutex);
                           run_messages(*group, lock, *aborted, rank, messages);
                         });
}

ncclResult_t queue(const Call& call, const void* in, void* out, ncclComm_t comm, cudaStream_t stream) {
  auto* const from = static_cast<std::byte*>(emulated_cuda::for_workers(in));
  auto* const to = static_cast<std::byte*>(emulated_cuda::for_workers(static_cast<const void*>(out)));
  g_queued.push_back({comm, stream, call, {from, to}});
  if (g_depth == 0) flush();
  return ncclSuccess;
}

}  // namespace

const char* ncclGetErrorString(ncclResult_t status) {
  switch (status) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage: duplicate GPU detected";
    case ncclInProgress:
      return "NCCL operation in progress";
    case ncclInternalError:
      break;
  }
  return "internal error";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::scoped_lock lock(g_mutex);
  *id = {};
  const long number = g_next_id++;
  std::memcpy(id->internal, &number, sizeof(number));
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0 || rank < 0 || rank >= size) return ncclInvalidArgument;
  long number = 0;
  std::memcpy(&number, id.internal, sizeof(number));
  auto made = std::make_unique<ncclComm>();
  {
    const std::scoped_lock lock(g_mutex);
    made->group = g_groups[number].lock();
    if (!made->group) g_groups[number] = made->group = std::make_shared<Group>(size);
  }
  made->rank = rank;
  int device = 0;
  cudaGetDevice(&device);
  Group& group = *made->group;
  const std::scoped_lock lock(group.mutex);
  if (group.size != size || group.joined[static_cast<std::size_t>(rank)]) return ncclInvalidArgument;
  group.joined[static_cast<std::size_t>(rank)] = true;
  for (const int other : group.devices) group.shares_a_device = group.shares_a_device || other == device;
  group.devices.push_back(device);
  ++group.members;
  *comm = made.release();
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  {
    const std::scoped_lock lock(comm->group->mutex);
    *comm->aborted = true;
  }
  comm->group->changed.notify_all();
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  Group& group = *comm->group;
  const std::scoped_lock lock(group.mutex);
  *state = group.shares_a_device ? ncclInvalidUsage : group.members < group.size ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++g_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (--g_depth == 0) flush();
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return queue({Kind::all_reduce, count, type, op}, in, out, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return queue({Kind::reduce_scatter, count, type, op}, in, out, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return queue({Kind::all_gather, count, type, ncclSum}, in, out, comm, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return queue({Kind::broadcast, count, type, ncclSum, root}, in, out, comm, stream);
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return queue({Kind::send, count, type, ncclSum, peer}, from, nullptr, comm, stream);
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return queue({Kind::recv, count, type, ncclSum, peer}, nullptr, to, comm, stream);
}
