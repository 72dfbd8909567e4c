#include "cuboid/parallel/gradients.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "cuboid/kernels/kernels.h"
#include "cuboid/runtime/profiler_range.h"

namespace cuboid {
namespace {

// The part of shard rows [row, row + count) of a parameter that this rank owns, as gradients; may be empty.
Tensor owned_gradient(const ParameterStore& store, const Parameter& p, std::int64_t begin, std::int64_t count) {
  const OwnedStretch own = store.owned(p);
  const std::int64_t first = std::max(begin, own.begin);
  const std::int64_t end = std::max(first, std::min(begin + count, own.begin + own.count));
  const std::int64_t at = first == end ? 0 : own.at + first - own.begin;
  return store.bucket_of(p).gradient_shard.narrow(at, end - first);
}

// Visits each piece of a parameter's shard: f(piece, first element, elements). A replicated parameter is one piece.
template <typename F>
void for_pieces(const ParameterInfo& info, int tp_rank, int tp_size, F&& visit) {
  if (info.split_dim != 0 || info.pieces.size() < 2) {
    visit(0, std::int64_t{0}, shard_shape(info, tp_rank, tp_size).elements());
    return;
  }
  const std::int64_t row = info.shape.elements() / info.shape[0];
  std::int64_t begin = 0;
  const auto ranges = owned_ranges(info, tp_rank, tp_size);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    visit(static_cast<int>(i), begin, ranges[i].count * row);
    begin += ranges[i].count * row;
  }
}

}  // namespace

GradientReduction::GradientReduction(const Device& device, ParameterStore& store, int stage)
    : device_(device), store_(store) {
  for (ParameterBucket& bucket : store.buckets()) {
    if (bucket.layout.stage != stage) continue;
    for (const Parameter* p : bucket.parameters) index_[p] = pending_.size();
    Pending& made = pending_.emplace_back();
    made.bucket = &bucket;
    made.missing = static_cast<int>(bucket.parameters.size());
  }
}

void GradientReduction::ready(const Parameter& parameter, bool last_micro_batch) {
  if (!last_micro_batch && store_.zero() < 2) return;
  --pending_[index_.at(&parameter)].missing;
  start_full();
}

void GradientReduction::start_full() {
  for (Pending& pending : pending_) {
    if (pending.started) continue;
    if (pending.missing > 0) return;
    start(pending);
  }
}

void GradientReduction::start(Pending& pending) {
  pending.started = true;
  ParameterBucket& bucket = *pending.bucket;
  Communicator& copies = *bucket.copies;
  if (copies.size() == 1 && store_.zero() < 2) return;
  const ProfilerRange range("reduce gradients over " + copies.name());
  const bool whole = store_.zero() == 0;
  const Tensor& place = whole ? bucket.gradients : bucket.gradient_shard;
  const DType type = store_.message_type(place.dtype());
  Tensor message = bucket.gradients;
  if (type != message.dtype()) {
    message = device_.empty(message.shape(), type, Category::communication);
    kernels::convert(device_, bucket.gradients, message);
  }
  Tensor sum = place;
  if (store_.zero() >= 2 || type != place.dtype()) {
    sum = whole ? message : device_.empty(place.shape(), type, Category::communication);
    pending.received = sum;
  }
  pending.work =
      whole ? copies.all_reduce(message, sum, ReduceOp::sum) : copies.reduce_scatter(message, sum, ReduceOp::sum);
  pending.message = std::move(message);
}

void GradientReduction::finish(bool last) {
  if (store_.zero() < 2 && !last) return;
  for (Pending& pending : pending_) {
    ParameterBucket& bucket = *pending.bucket;
    if (!pending.started) {
      // A parameter that took no part: its bucket is reduced all the same, since the other ranks wait for it.
      for (Parameter* p : bucket.parameters) store_.acquire_gradient(*p);
      start(pending);
    }
    pending.work.wait();
    if (pending.received.defined()) put(pending);
    pending.message = Tensor();
    if (store_.zero() >= 2) store_.release_gradient(bucket);
    pending.started = false;
    pending.missing = static_cast<int>(bucket.parameters.size());
  }
}

// A sum of the ranks' gradients to where it belongs.
void GradientReduction::put(Pending& pending) {
  const ParameterBucket& bucket = *pending.bucket;
  Tensor sum = std::exchange(pending.received, Tensor());
  if (store_.zero() < 2) {
    kernels::convert(device_, sum, store_.zero() == 0 ? bucket.gradients : bucket.gradient_shard);
    return;
  }
  if (sum.dtype() != bucket.gradient_shard.dtype()) {
    const Tensor wide = device_.empty(sum.shape(), bucket.gradient_shard.dtype(), Category::communication);
    kernels::convert(device_, sum, wide);
    sum = wide;
  }
  kernels::add(device_, bucket.gradient_shard, sum, bucket.gradient_shard);
}

TensorPartialGradients::TensorPartialGradients(const Device& device, const ParameterTable& table,
                                               const ParameterStore& store, Communicator& tensor,
                                               bool sequence_parallel)
    : device_(device), message_type_(store.message_type(DType::float32)) {
  if (tensor.size() == 1) return;
  // Splitting is collective and the ranks of a tensor group hold the same stages, so all of them walk the same rows.
  for (const auto& info : table.rows()) {
    for (const Piece& piece : info.pieces) {
      const int copies = replicas(piece, tensor.size());
      if (copies > 1 && !sharing_.contains(copies)) {
        sharing_[copies] = tensor.split(tensor.rank() / copies, tensor.rank(), "tp copies");
      }
    }
  }
  for (const Parameter* p : store.all()) {
    const ParameterInfo& info = *p->info;
    for_pieces(info, tensor.rank(), tensor.size(), [&](int piece, std::int64_t begin, std::int64_t count) {
      Communicator* comm = nullptr;
      if (info.split_dim < 0) {
        if (sequence_parallel || info.partial) comm = &tensor;
      } else if (const int copies = replicas(info.pieces[static_cast<std::size_t>(piece)], tensor.size()); copies > 1) {
        comm = sharing_.at(copies).get();
      }
      if (!comm) return;
      const Tensor gradient = owned_gradient(store, *p, begin, count);
      if (gradient.elements() > 0) parts_.push_back({gradient, comm});
    });
  }
}

void TensorPartialGradients::reduce() {
  if (parts_.empty()) return;
  const ProfilerRange range("reduce partial gradients");
  // All of a communicator's parts travel as one message: they are many and small.
  std::vector<Communicator*> comms;
  for (const Part& part : parts_) {
    if (std::find(comms.begin(), comms.end(), part.comm) == comms.end()) comms.push_back(part.comm);
  }
  for (Communicator* comm : comms) {
    std::int64_t total = 0;
    for (const Part& part : parts_) total += part.comm == comm ? part.gradient.elements() : 0;
    const DType type = parts_.front().gradient.dtype();
    const Tensor packed =
        device_.empty({total}, type == DType::float32 ? message_type_ : type, Category::communication);
    const auto walk = [&](auto&& visit) {
      std::int64_t at = 0;
      for (const Part& part : parts_) {
        if (part.comm != comm) continue;
        const std::int64_t count = part.gradient.elements();
        visit(part.gradient, packed.narrow(at, count));
        at += count;
      }
    };
    walk([&](const Tensor& gradient, const Tensor& place) { kernels::convert(device_, gradient, place); });
    all_reduce_in_place(*comm, packed);
    walk([&](const Tensor& gradient, const Tensor& place) { kernels::convert(device_, place, gradient); });
  }
}

void add_tied_gradients(const Device& device, const ParameterTable& table, const ParameterStore& store,
                        Communicator* ends) {
  for (const auto& info : table.rows()) {
    if (info.tied_with.empty()) continue;
    const Parameter* head = store.find(info.name);
    const Parameter* embedding = store.find(info.tied_with);
    // Both are alone in their buckets, which are cut alike: the owned parts correspond.
    if (head && embedding) {
      const Tensor& sum = store.bucket_of(*embedding).gradient_shard;
      const Tensor& twin = store.bucket_of(*head).gradient_shard;
      kernels::add(device, sum, twin, sum);
      device.copy(sum, twin);
    } else if (head || embedding) {
      CUBOID_CHECK(ends != nullptr, info.name + " is tied over two ranks without a communicator");
      const ProfilerRange range("reduce tied gradients");
      all_reduce_in_place(*ends, store.bucket_of(head ? *head : *embedding).gradient_shard);
    }
  }
}

double gradient_norm(const Device& device, const ParameterStore& store, Communicator& tensor, Communicator& pipeline) {
  const ProfilerRange range("gradient norm");
  const Tensor squares = device.zeros({ExactSum::kWords}, DType::int64, Category::workspace);
  for (const Parameter* p : store.all()) {
    const ParameterInfo& info = *p->info;
    if (!info.tied_with.empty() || !store.counts(*p)) continue;
    for_pieces(info, tensor.rank(), tensor.size(), [&](int piece, std::int64_t begin, std::int64_t count) {
      if (!counts_piece(info, piece, tensor.rank(), tensor.size())) return;
      kernels::add_squares(device, owned_gradient(store, *p, begin, count), squares);
    });
  }
  const Tensor message = device.to_host(squares);
  std::array<std::int64_t, ExactSum::kWords> words{};
  std::copy_n(message.data<std::int64_t>(), words.size(), words.begin());
  words = ExactSum::from_words(words).words();  // carried, so that sums over ranks cannot overflow
  std::copy(words.begin(), words.end(), message.data<std::int64_t>());
  all_reduce_in_place(tensor, message);
  all_reduce_in_place(pipeline, message);
  all_reduce_in_place(store.copies(), message);
  std::copy_n(message.data<std::int64_t>(), words.size(), words.begin());
  return std::sqrt(ExactSum::from_words(words).value());
}

}  // namespace cuboid
