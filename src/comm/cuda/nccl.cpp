#include "nccl.h"

#include <chrono>
#include <climits>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include <fmt/format.h>
#include <nccl.h>
#include <unistd.h>

#include "cuboid/runtime/gpus.h"

#include "../group_communicator.h"
#include "runtime/cuda/gpu.h"

namespace cuboid::detail {
namespace {

using cuda::Mark;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return ncclFloat32;
    case DType::float64:
      return ncclFloat64;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::int32:
      return ncclInt32;
    case DType::int64:
      return ncclInt64;
  }
  return ncclFloat32;
}

ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : ncclMax;
}

class Link;

// What the links of a rank share: how long to wait, whom to ask whether the others live, and the links themselves, so
// that a host that waits for the GPU notices what is wrong with any of them.
class Endpoint {
 public:
  Endpoint(const Communicator& world, const Device& device, double deadline)
      : world_(world), device_(device), deadline_(deadline) {}

  const Device& device() const { return device_; }
  cuda::Gpu& gpu() const { return cuda::gpu_of(device_); }
  void add(Link* link) { links_.push_back(link); }
  void remove(Link* link) { std::erase(links_, link); }
  /// While something is not done: throws if another rank failed, a link reports an error, or it takes too long.
  void check(double waited) const;
  bool late(double waited) const { return waited >= deadline_; }
  void check_world() const { world_.check(); }

 private:
  const Communicator& world_;
  Device device_;
  double deadline_;
  std::vector<Link*> links_;  // of this rank's thread alone
};

// An NCCL communicator and its stream.
class Link {
 public:
  Link(std::shared_ptr<Endpoint> endpoint, Communicator& host) : endpoint_(std::move(endpoint)) {
    ncclUniqueId id{};
    const Tensor words = Device().empty({static_cast<std::int64_t>(sizeof(id) / sizeof(std::int64_t))}, DType::int64);
    if (host.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::memcpy(words.raw(), &id, sizeof(id));
    host.broadcast(words, 0).wait();
    std::memcpy(&id, words.raw(), sizeof(id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // so that a member that never comes is noticed
    where_ = fmt::format("communicator \"{}\" (member {} of {})", host.name(), host.rank(), host.size());
    endpoint_->add(this);
    try {
      settle(ncclCommInitRankConfig(&comm_, host.size(), id, host.rank(), &config), "its start");
    } catch (...) {
      close(true);
      throw;
    }
  }
  // With an exception under way, what is queued may wait for members that will never come.
  ~Link() { close(std::uncaught_exceptions() > 0); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  ncclComm_t comm() const { return comm_; }
  cudaStream_t stream() const { return stream_.get(); }

  /// Queues what `issue` asks NCCL for behind everything on the compute stream. Returns the mark of its end, until
  /// which `kept` is kept.
  template <typename Issue>
  Mark run(const std::string& what, Issue issue, const Tensor& kept = {}) {
    stream_.wait(endpoint_->gpu().compute().mark());
    check(ncclGroupStart(), what);
    const ncclResult_t issued = issue();
    const ncclResult_t ended = ncclGroupEnd();
    if (issued != ncclSuccess && issued != ncclInProgress) check(issued, what);
    settle(ended, what);
    Mark done = stream_.mark();
    while (!queued_.empty() && queued_.front().done->done()) queued_.pop_front();
    queued_.push_back({what, done, kept});
    return done;
  }

  /// Throws what NCCL has found out since.
  void poll() const {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
    if (state != ncclInProgress) check(state, oldest());
  }
  /// The first operation that has not ended; empty: none.
  std::string oldest() const {
    for (const Queued& queued : queued_) {
      if (!queued.done->done()) return queued.what + " of " + where_;
    }
    return "";
  }

 private:
  struct Queued {
    std::string what;
    Mark done;
    Tensor kept;
  };

  void check(ncclResult_t status, const std::string& what) const {
    if (status == ncclSuccess) return;
    throw Error(ErrorKind::failed,
                fmt::format("{} on {}: NCCL reports \"{}\"", what, where_, ncclGetErrorString(status)));
  }

  // Waits until NCCL has done on the host what was asked.
  void settle(ncclResult_t status, const std::string& what) const {
    const auto start = Clock::now();
    while (true) {
      if (status != ncclInProgress) check(status, what);
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm_, &state), what);
      if (state != ncclInProgress) return check(state, what);
      status = ncclSuccess;
      endpoint_->check_world();
      if (endpoint_->late(seconds_since(start))) {
        throw Error(ErrorKind::deadline, fmt::format("{} on {}: NCCL has not come to it after {:.3g} s", what, where_,
                                                     seconds_since(start)));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  void close(bool broken) noexcept {
    endpoint_->remove(this);
    if (comm_ == nullptr) return;
    if (broken) {
      ncclCommAbort(comm_);
    } else {
      ncclCommDestroy(comm_);
    }
    comm_ = nullptr;
    cudaStreamSynchronize(stream_.get());  // before what is kept goes back to the pool
    queued_.clear();
  }

  std::shared_ptr<Endpoint> endpoint_;
  cuda::Stream stream_;
  std::string where_;
  ncclComm_t comm_ = nullptr;
  std::deque<Queued> queued_;  // oldest first
};

void Endpoint::check(double waited) const {
  world_.check();
  for (const Link* link : links_) link->poll();
  if (!late(waited)) return;
  std::string pending;
  for (const Link* link : links_) {
    if (const std::string oldest = link->oldest(); !oldest.empty()) pending += (pending.empty() ? "" : "; ") + oldest;
  }
  throw Error(ErrorKind::deadline, fmt::format("the GPU has not finished after {:.3g} s; it is at: {}", waited,
                                               pending.empty() ? "no communication of this rank" : pending));
}

constexpr int kMostDims = 6;
constexpr std::int64_t kHeaderWords = 3 + kMostDims;  // tag, type, dims, sizes

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<Endpoint> endpoint, std::unique_ptr<Communicator> host)
      : Communicator(host->rank(), host->size(), host->name()),
        endpoint_(std::move(endpoint)),
        host_(std::move(host)),
        arrived_(std::make_shared<std::deque<Arrived>>()) {
    if (size() > 1) link_ = std::make_shared<Link>(endpoint_, *host_);
  }

  Work all_reduce(const Tensor& in, const Tensor& out, ReduceOp op) override {
    if (out.on_host()) return host_->all_reduce(in, out, op);
    CUBOID_CHECK(in.dtype() == out.dtype() && in.elements() == out.elements(), both(in, out));
    if (size() == 1) return copied(in, out);
    return start("all_reduce", in, out, [&] {
      return ncclAllReduce(in.raw(), out.raw(), count(out), type_of(out.dtype()), op_of(op), link_->comm(),
                           link_->stream());
    });
  }

  Work reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op) override {
    if (out.on_host()) return host_->reduce_scatter(in, out, op);
    CUBOID_CHECK(in.dtype() == out.dtype() && in.elements() == size() * out.elements(), both(in, out));
    if (size() == 1) return copied(in, out);
    return start("reduce_scatter", in, out, [&] {
      return ncclReduceScatter(in.raw(), out.raw(), count(out), type_of(out.dtype()), op_of(op), link_->comm(),
                               link_->stream());
    });
  }

  Work all_gather(const Tensor& in, const Tensor& out) override {
    if (out.on_host()) return host_->all_gather(in, out);
    CUBOID_CHECK(in.dtype() == out.dtype() && out.elements() == size() * in.elements(), both(in, out));
    if (size() == 1) return copied(in, out);
    return start("all_gather", in, out, [&] {
      return ncclAllGather(in.raw(), out.raw(), count(in), type_of(in.dtype()), link_->comm(), link_->stream());
    });
  }

  Work all_to_all(const Tensor& in, const Tensor& out) override {
    if (out.on_host()) return host_->all_to_all(in, out);
    CUBOID_CHECK(in.dtype() == out.dtype() && in.elements() == out.elements() && in.elements() % size() == 0,
                 both(in, out));
    CUBOID_CHECK(!overlap(in, out), "in and out overlap");
    if (size() == 1) return copied(in, out);
    return start("all_to_all", in, out, [&] {
      const std::size_t part = count(in) / static_cast<std::size_t>(size());
      const std::size_t bytes = part * size_of(in.dtype());
      for (int peer = 0; peer < size(); ++peer) {
        const std::size_t at = static_cast<std::size_t>(peer) * bytes;
        const ncclResult_t status = swap_with(peer, in.dtype(), static_cast<const std::byte*>(in.raw()) + at, part,
                                              static_cast<std::byte*>(out.raw()) + at, part);
        if (status != ncclSuccess) return status;
      }
      return ncclSuccess;
    });
  }

  Work all_to_all_v(const Tensor& in, const std::vector<std::int64_t>& sent, const Tensor& out,
                    const std::vector<std::int64_t>& received) override {
    if (out.on_host()) return host_->all_to_all_v(in, sent, out, received);
    const auto covers = [&](const std::vector<std::int64_t>& counts, const Tensor& tensor) {
      return counts.size() == static_cast<std::size_t>(size()) &&
             std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == tensor.elements() &&
             std::all_of(counts.begin(), counts.end(), [](auto n) { return n >= 0; });
    };
    CUBOID_CHECK(in.dtype() == out.dtype() && covers(sent, in) && covers(received, out), both(in, out));
    CUBOID_CHECK(!overlap(in, out), "in and out overlap");
    if (size() == 1) return copied(in, out);
    compare_counts(sent, received);
    return start("all_to_all_v", in, out, [&] {
      const auto* from = static_cast<const std::byte*>(in.raw());
      auto* to = static_cast<std::byte*>(out.raw());
      for (int peer = 0; peer < size(); ++peer) {
        const auto there = static_cast<std::size_t>(sent[static_cast<std::size_t>(peer)]);
        const auto back = static_cast<std::size_t>(received[static_cast<std::size_t>(peer)]);
        const ncclResult_t status = swap_with(peer, in.dtype(), from, there, to, back);
        if (status != ncclSuccess) return status;
        from += there * size_of(in.dtype());
        to += back * size_of(in.dtype());
      }
      return ncclSuccess;
    });
  }

  Work broadcast(const Tensor& tensor, int root) override {
    if (tensor.on_host()) return host_->broadcast(tensor, root);
    CUBOID_CHECK(root >= 0 && root < size(), fmt::format("root {} of {}", root, size()));
    if (size() == 1) return {};
    return start("broadcast", tensor, tensor, [&] {
      return ncclBroadcast(tensor.raw(), tensor.raw(), count(tensor), type_of(tensor.dtype()), root, link_->comm(),
                           link_->stream());
    });
  }

  void check() const override { host_->check(); }
  void barrier() override { host_->barrier(); }

  // NCCL knows no tags: a header on the host goes ahead, and the receiver takes messages in the order of their headers.
  Work send(Tensor tensor, int to, int tag) override {
    if (tensor.on_host()) return host_->send(std::move(tensor), to, tag);
    set_direction(Direction::sends);
    CUBOID_CHECK(tensor.shape().rank() <= kMostDims, to_string(tensor.shape()));
    if (tensor.unique()) {
      endpoint_->device().adopt(tensor, Category::communication);
    } else {
      tensor = endpoint_->device().clone(tensor, Category::communication);
    }
    const Tensor header = Device().zeros({kHeaderWords}, DType::int64);
    auto* words = header.data<std::int64_t>();
    words[0] = tag;
    words[1] = static_cast<std::int64_t>(tensor.dtype());
    words[2] = tensor.shape().rank();
    std::copy(tensor.shape().dims().begin(), tensor.shape().dims().end(), words + 3);
    host_->send(header, to, kHeaderTag);
    const auto issue = [&] {
      return ncclSend(tensor.raw(), count(tensor), type_of(tensor.dtype()), to, link_->comm(), link_->stream());
    };
    link_->run(fmt::format("send to member {}, tag {}", to, tag), issue, tensor);
    return {};
  }

  Incoming recv(Shape shape, DType dtype, int from, int tag) override {
    set_direction(Direction::receives);
    return Incoming([this, shape = std::move(shape), dtype, from, tag] { return receive(shape, dtype, from, tag); });
  }

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    auto part = host_->split(color, key, name);
    return part ? std::make_unique<NcclCommunicator>(endpoint_, std::move(part)) : nullptr;
  }

 private:
  static constexpr int kHeaderTag = -1;
  enum class Direction { none, sends, receives };
  // A send occupies its stream until the receiver comes: two members that both send first would wait for each other.
  void set_direction(Direction direction) {
    CUBOID_CHECK(size() == 2 && (direction_ == Direction::none || direction_ == direction),
                 fmt::format("messages of device memory on communicator \"{}\", which is not a channel of two members "
                             "for one direction",
                             name()));
    direction_ = direction;
  }
  struct Arrived {
    int from, tag;
    Tensor tensor;
    Mark done;
  };

  static std::size_t count(const Tensor& tensor) { return static_cast<std::size_t>(tensor.elements()); }

  // A part to a member and one back, inside a group of calls.
  ncclResult_t swap_with(int peer, DType dtype, const void* from, std::size_t sent, void* to, std::size_t received) {
    ncclResult_t status = ncclSend(from, sent, type_of(dtype), peer, link_->comm(), link_->stream());
    if (status == ncclSuccess || status == ncclInProgress) {
      status = ncclRecv(to, received, type_of(dtype), peer, link_->comm(), link_->stream());
    }
    return status == ncclInProgress ? ncclSuccess : status;
  }

  // NCCL takes the counts of both sides for equal. They are in host memory: comparing them waits for no GPU.
  void compare_counts(const std::vector<std::int64_t>& sent, const std::vector<std::int64_t>& received) {
    const auto words = [&] { return Device().empty({static_cast<std::int64_t>(size())}, DType::int64); };
    const Tensor mine = words();
    const Tensor theirs = words();
    std::copy(sent.begin(), sent.end(), mine.data<std::int64_t>());
    host_->all_to_all(mine, theirs).wait();
    for (std::size_t from = 0; from < received.size(); ++from) {
      const std::int64_t promised = theirs.data<std::int64_t>()[from];
      if (promised == received[from]) continue;
      throw std::logic_error(
          fmt::format("all_to_all_v of communicator \"{}\" (member {} of {}): {} elements from member {}: it sends {}",
                      name(), rank(), size(), received[from], from, promised));
    }
  }

  Work copied(const Tensor& in, const Tensor& out) {
    endpoint_->device().copy(in, out);
    return {};
  }

  template <typename Issue>
  Work start(const char* operation, const Tensor& in, const Tensor& out, Issue issue) {
    CUBOID_CHECK(!in.on_host(), "one of in and out is in a GPU's memory");
    const Mark done = link_->run(fmt::format("{} of {} {}", operation, out.elements(), name_of(out.dtype())), issue);
    return Work([in, out, done, link = link_, endpoint = endpoint_] {
      endpoint->check_world();
      link->poll();
      endpoint->gpu().compute().wait(done);
    });
  }

  Tensor receive(const Shape& shape, DType dtype, int from, int tag) {
    const auto here = [&] {
      return std::find_if(arrived_->begin(), arrived_->end(),
                          [&](const Arrived& a) { return a.from == from && a.tag == tag; });
    };
    auto found = here();
    for (; found == arrived_->end(); found = here()) take_next(from);
    Arrived message = std::move(*found);
    arrived_->erase(found);
    if (message.tensor.shape() != shape || message.tensor.dtype() != dtype) {
      throw std::logic_error(fmt::format(
          "recv of {} {} from rank {}, tag {} of communicator \"{}\": the sender's is {} {}", to_string(shape),
          name_of(dtype), from, tag, name(), to_string(message.tensor.shape()), name_of(message.tensor.dtype())));
    }
    endpoint_->gpu().compute().wait(message.done);
    return std::move(message.tensor);
  }

  // Starts to receive the sender's next message, whatever its tag.
  void take_next(int from) {
    const Tensor header = host_->recv({kHeaderWords}, DType::int64, from, kHeaderTag).wait();
    const auto* words = header.data<std::int64_t>();
    const Shape shape(std::vector<std::int64_t>(words + 3, words + 3 + words[2]));
    const auto dtype = static_cast<DType>(words[1]);
    const auto tag = static_cast<int>(words[0]);
    const Tensor tensor = endpoint_->device().empty(shape, dtype, Category::activations);
    const Mark done = link_->run(fmt::format("recv from member {}, tag {}", from, tag), [&] {
      return ncclRecv(tensor.raw(), count(tensor), type_of(dtype), from, link_->comm(), link_->stream());
    });
    arrived_->push_back({from, tag, tensor, done});
  }

  std::shared_ptr<Endpoint> endpoint_;
  std::unique_ptr<Communicator> host_;
  std::shared_ptr<Link> link_;  // null for a single member
  std::shared_ptr<std::deque<Arrived>> arrived_;
  Direction direction_ = Direction::none;
};

// Refuses members that would share a GPU, which NCCL cannot.
void check_gpus(Communicator& host, int ordinal) {
  char name[HOST_NAME_MAX + 1] = {};
  gethostname(name, HOST_NAME_MAX);
  const std::string place =
      fmt::format("{} on host {}", find_gpus().gpus.at(static_cast<std::size_t>(ordinal)).uuid, name);
  constexpr std::int64_t kWords = 16;  // that text's first 128 bytes
  const Device cpu;
  const Tensor mine = cpu.zeros({kWords}, DType::int64);
  std::memcpy(mine.raw(), place.data(), std::min(place.size(), mine.bytes()));
  const Tensor all = cpu.zeros({kWords * host.size()}, DType::int64);
  host.all_gather(mine, all).wait();
  for (int a = 0; a < host.size(); ++a) {
    for (int b = a + 1; b < host.size(); ++b) {
      if (std::memcmp(all.narrow(a * kWords, kWords).raw(), all.narrow(b * kWords, kWords).raw(), mine.bytes()) != 0) {
        continue;
      }
      const auto* text = static_cast<const char*>(all.narrow(a * kWords, kWords).raw());
      throw Error(ErrorKind::request, fmt::format("ranks {} and {} use the same GPU, {}: each needs one of its own", a,
                                                  b, std::string(text, strnlen(text, mine.bytes()))));
    }
  }
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(std::unique_ptr<Communicator> host, const Device& device,
                                                     double deadline) {
  check_gpus(*host, cuda::gpu_of(device).ordinal());
  const auto endpoint = std::make_shared<Endpoint>(*host, device, deadline);
  auto made = std::make_unique<NcclCommunicator>(endpoint, std::move(host));
  cuda::gpu_of(device).set_watch([watched = std::weak_ptr(endpoint)](double waited) {
    if (const auto still = watched.lock()) still->check(waited);
  });
  return made;
}

}  // namespace cuboid::detail
