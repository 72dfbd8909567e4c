// A communicator on top of a group that its members in this process share: checks arguments and tracks tensors. The
// group does the rest. `AGroup` is Group or SpanGroup.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "operation.h"

namespace cuboid::detail {

// Reading one tensor while writing the other is in order if they are the same memory or apart.
inline bool overlap(const Tensor& a, const Tensor& b) {
  const auto* begin_a = static_cast<const std::byte*>(a.raw());
  const auto* begin_b = static_cast<const std::byte*>(b.raw());
  return a.buffer() == b.buffer() && begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

inline std::string both(const Tensor& in, const Tensor& out) {
  return fmt::format("in {} {}, out {} {}", to_string(in.shape()), name_of(in.dtype()), to_string(out.shape()),
                     name_of(out.dtype()));
}

/// The device that a rank's tensor belongs to: its own, or the CPU.
inline Device owner_of(const Device& device, const Tensor& tensor) {
  return tensor.on_host() ? device.host() : device;
}

template <typename AGroup>
class GroupCommunicator : public Communicator {
  using Counts = std::vector<std::int64_t>;

 public:
  GroupCommunicator(std::shared_ptr<AGroup> group, int rank, const Device& device, const std::string& name)
      : Communicator(rank, group->size(), name), group_(std::move(group)), device_(device) {}

  Work all_reduce(const Tensor& in, const Tensor& out, ReduceOp op) override {
    CUBOID_CHECK(in.dtype() == out.dtype() && in.elements() == out.elements(), both(in, out));
    CUBOID_CHECK(in.raw() == out.raw() || !overlap(in, out), "in and out overlap in part");
    return start({.kind = CallKind::all_reduce, .count = out.elements(), .dtype = out.dtype(), .reduce = op}, in, out);
  }

  Work reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op) override {
    check_parts(out, in, both(in, out));
    return start({.kind = CallKind::reduce_scatter, .count = out.elements(), .dtype = out.dtype(), .reduce = op}, in,
                 out);
  }

  Work all_gather(const Tensor& in, const Tensor& out) override {
    check_parts(in, out, both(in, out));
    return start({.kind = CallKind::all_gather, .count = in.elements(), .dtype = in.dtype()}, in, out);
  }

  Work all_to_all(const Tensor& in, const Tensor& out) override {
    CUBOID_CHECK(in.dtype() == out.dtype() && in.elements() == out.elements() && in.elements() % size() == 0,
                 both(in, out));
    CUBOID_CHECK(!overlap(in, out), "in and out overlap");
    return start({.kind = CallKind::all_to_all, .count = in.elements() / size(), .dtype = in.dtype()}, in, out);
  }

  // Every pair's part is a message, an empty one too: a count that the other side does not share never goes unnoticed.
  Work all_to_all_v(const Tensor& in, const Counts& sent, const Tensor& out, const Counts& received) override {
    CUBOID_CHECK(in.dtype() == out.dtype() && covers(sent, in) && covers(received, out), both(in, out));
    CUBOID_CHECK(!overlap(in, out), "in and out overlap");
    CUBOID_CHECK(in.on_host() == out.on_host(), "one of in and out is in a GPU's memory");
    const Device owner = owner_of(device_, in);
    const std::vector<Tensor> parts = parts_of(in, sent);
    std::vector<Tensor> places = parts_of(out, received);
    std::vector<std::uint64_t> claims(places.size());
    const auto own = static_cast<std::size_t>(rank());
    CUBOID_CHECK(sent[own] == received[own],
                 fmt::format("{} elements to itself, {} from itself", sent[own], received[own]));
    owner.copy(parts[own], places[own]);
    for (int step = 1; step < size(); ++step) {
      const int to = (rank() + step) % size();
      Tensor part = owner.clone(parts[static_cast<std::size_t>(to)], Category::communication);
      StreamMark ready = mark(part);
      group_->send(rank(), {std::move(part), std::move(ready)}, to, kPartTag);
      const int from = (rank() + size() - step) % size();
      claims[static_cast<std::size_t>(from)] = group_->claim_message(rank(), from, kPartTag);
    }
    return Work([group = group_, device = device_, rank = rank(), places = std::move(places), claims] {
      for (int from = 0; from < group->size(); ++from) {
        const Tensor& place = places[static_cast<std::size_t>(from)];
        if (from != rank) receive_part(*group, device, rank, from, claims[static_cast<std::size_t>(from)], place);
      }
    });
  }

  Work broadcast(const Tensor& tensor, int root) override {
    CUBOID_CHECK(root >= 0 && root < size(), fmt::format("root {} of {}", root, size()));
    return start({.kind = CallKind::broadcast, .count = tensor.elements(), .dtype = tensor.dtype(), .root = root},
                 tensor, tensor);
  }

  void check() const override { group_->world()->throw_if_aborted(); }

  void barrier() override { start({.kind = CallKind::barrier}, {}, {}).wait(); }

  Work send(Tensor tensor, int to, int tag) override {
    check_peer(to);
    // The receiver may take its time, and who keeps a reference may write to it meanwhile: then a copy travels.
    const Device owner = owner_of(device_, tensor);
    if (tensor.unique()) {
      owner.adopt(tensor, Category::communication);
    } else {
      tensor = owner.clone(tensor, Category::communication);
    }
    StreamMark ready = mark(tensor);
    group_->send(rank(), {std::move(tensor), std::move(ready)}, to, tag);
    return {};
  }

  Incoming recv(Shape shape, DType dtype, int from, int tag) override {
    check_peer(from);
    const std::uint64_t claimed = group_->claim_message(rank(), from, tag);
    return Incoming(
        [group = group_, device = device_, shape = std::move(shape), rank = rank(), dtype, from, tag, claimed] {
          const std::string expected = fmt::format("{} {}", to_string(shape), name_of(dtype));
          auto [message, ready] = group->receive(rank, from, tag, claimed, expected);
          if (message.shape() != shape || message.dtype() != dtype) {
            throw std::logic_error(
                group->describe(
                    rank, fmt::format("recv of {} from rank {}, tag {}", expected, group->world_rank(from), tag)) +
                fmt::format(": the sender's is {} {}", to_string(message.shape()), name_of(message.dtype())));
          }
          if (ready) wait_for(device, ready);
          owner_of(device, message).adopt(message, Category::activations);
          return std::move(message);
        });
  }

 protected:
  const std::shared_ptr<AGroup>& group() const { return group_; }
  const Device& device() const { return device_; }

 private:
  static constexpr int kPartTag = -1;  // of all_to_all_v's messages; callers' tags are not negative

  bool covers(const Counts& counts, const Tensor& tensor) const {
    return counts.size() == static_cast<std::size_t>(size()) &&
           std::all_of(counts.begin(), counts.end(), [](auto n) { return n >= 0; }) &&
           std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == tensor.elements();
  }

  static std::vector<Tensor> parts_of(const Tensor& tensor, const Counts& counts) {
    const Tensor flat = tensor.reshape({tensor.elements()});
    std::vector<Tensor> parts;
    std::int64_t at = 0;
    for (const std::int64_t count : counts) {
      parts.push_back(flat.narrow(at, count));
      at += count;
    }
    return parts;
  }

  static void receive_part(AGroup& group, const Device& device, int rank, int from, std::uint64_t claimed,
                           const Tensor& place) {
    const std::string expected = fmt::format("{} {}", place.elements(), name_of(place.dtype()));
    auto [part, ready] = group.receive(rank, from, kPartTag, claimed, "an all_to_all_v's " + expected);
    if (part.elements() != place.elements() || part.dtype() != place.dtype()) {
      throw std::logic_error(
          group.describe(rank, fmt::format("all_to_all_v, {} from rank {}", expected, group.world_rank(from))) +
          fmt::format(": it sends {} {}", part.elements(), name_of(part.dtype())));
    }
    if (ready) wait_for(device, ready);
    // Its memory goes back to whoever owns it once it is copied: to this rank, on whose stream that is.
    const Device owner = owner_of(device, part);
    owner.adopt(part, Category::communication);
    owner.copy(part, place);
  }

  Work start(Call call, const Tensor& in, const Tensor& out) {
    call.on_host = !out.defined() || out.on_host();
    CUBOID_CHECK(!in.defined() || in.on_host() == call.on_host, "one of in and out is in a GPU's memory");
    StreamMark ready = mark(out);
    return Work([group = group_, operation = group_->start(rank(), call, in, out, {}, std::move(ready)), rank = rank(),
                 device = device_] {
      group->finish(rank, *operation);
      if (operation->done) wait_for(device, operation->done);
    });
  }

  /// When the tensor may be used by others; empty for host memory.
  StreamMark mark(const Tensor& tensor) const {
    return tensor.defined() && !tensor.on_host() ? mark_of(device_) : StreamMark();
  }

  // `whole` has size() parts like `part`, which may be the own one of them.
  void check_parts(const Tensor& part, const Tensor& whole, const std::string& sizes) const {
    CUBOID_CHECK(part.dtype() == whole.dtype() && whole.elements() == size() * part.elements(), sizes);
    const auto* own = static_cast<const std::byte*>(whole.raw()) + static_cast<std::size_t>(rank()) * part.bytes();
    CUBOID_CHECK(part.raw() == own || !overlap(part, whole), "in and out overlap other than in the own part");
  }

  void check_peer(int peer) const {
    CUBOID_CHECK(peer >= 0 && peer < size() && peer != rank(),
                 fmt::format("member {} of {} names member {} as its peer", rank(), size(), peer));
  }

  std::shared_ptr<AGroup> group_;
  Device device_;
};

}  // namespace cuboid::detail
