#include "cuboid/parallel/data_parallel.h"

#include <algorithm>

#include "cuboid/kernels/kernels.h"

namespace cuboid {

GradientBuckets::GradientBuckets(StageParameters& stage, Communicator& data, std::int64_t bucket_bytes) : data_(data) {
  // Parameters lie in table order in one flat tensor; find each one's offset from the addresses.
  const auto element = static_cast<std::int64_t>(size_of(stage.gradients.dtype()));
  const auto offset = [&](const Parameter& p) {
    return (static_cast<std::byte*>(p.gradient.raw()) - static_cast<std::byte*>(stage.gradients.raw())) / element;
  };
  std::int64_t end = stage.gradients.elements();
  int count = 0;
  for (auto p = stage.parameters.rbegin(); p != stage.parameters.rend(); ++p) {
    bucket_of_[*p] = buckets_.size();
    ++count;
    const std::int64_t begin = offset(**p);
    if ((end - begin) * element >= bucket_bytes || std::next(p) == stage.parameters.rend()) {
      buckets_.push_back({stage.gradients.narrow(begin, end - begin), count, count, {}});
      end = begin;
      count = 0;
    }
  }
}

void GradientBuckets::ready(const Parameter& parameter) {
  --buckets_[bucket_of_.at(&parameter)].missing;
  start_full_buckets();
}

void GradientBuckets::start_full_buckets() {
  for (; started_ < buckets_.size() && buckets_[started_].missing <= 0; ++started_) {
    Bucket& bucket = buckets_[started_];
    if (data_.size() > 1) bucket.work = data_.all_reduce(bucket.gradients, bucket.gradients, ReduceOp::sum);
  }
}

void GradientBuckets::finish() {
  for (Bucket& bucket : buckets_) bucket.missing = 0;
  start_full_buckets();
  for (Bucket& bucket : buckets_) {
    bucket.work.wait();
    bucket.missing = bucket.parameters;
  }
  started_ = 0;
}

TensorPartialGradients::TensorPartialGradients(const Device& device, const ParameterTable& table, ParameterStore& store,
                                               Communicator& tensor, bool sequence_parallel)
    : device_(device) {
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
  for (Parameter* p : store.all()) {
    const ParameterInfo& info = *p->info;
    if (info.split_dim < 0 && sequence_parallel) parts_.push_back({p->gradient, &tensor});
    std::int64_t row = 0;
    const auto ranges = owned_ranges(info, tensor.rank(), tensor.size());
    for (std::size_t i = 0; i < info.pieces.size(); ++i) {
      const int copies = replicas(info.pieces[i], tensor.size());
      if (copies > 1) {
        CUBOID_CHECK(info.split_dim == 0, info.name + ": a replicated piece must be cut along dim 0");
        parts_.push_back({p->gradient.narrow(row, ranges[i].count), sharing_.at(copies).get()});
      }
      row += ranges[i].count;
    }
  }
}

void TensorPartialGradients::reduce() {
  // All of a communicator's parts travel as one message: they are many and small.
  std::vector<Communicator*> comms;
  for (const Part& part : parts_) {
    if (std::find(comms.begin(), comms.end(), part.comm) == comms.end()) comms.push_back(part.comm);
  }
  for (Communicator* comm : comms) {
    std::int64_t total = 0;
    for (const Part& part : parts_) total += part.comm == comm ? part.gradient.elements() : 0;
    const Tensor packed = device_.empty({total}, parts_.front().gradient.dtype(), Category::communication);
    const auto walk = [&](auto&& visit) {
      std::int64_t at = 0;
      for (const Part& part : parts_) {
        if (part.comm != comm) continue;
        const std::int64_t count = part.gradient.elements();
        visit(part.gradient, packed.narrow(at, count));
        at += count;
      }
    };
    walk([&](const Tensor& gradient, const Tensor& place) { device_.copy(gradient, place); });
    all_reduce_in_place(*comm, packed);
    walk([&](const Tensor& gradient, const Tensor& place) { device_.copy(place, gradient); });
  }
}

void add_tied_gradients(const Device& device, const ParameterTable& table, const ParameterStore& store,
                        Communicator* ends) {
  for (const auto& info : table.rows()) {
    if (info.tied_with.empty()) continue;
    Parameter* head = store.find(info.name);
    Parameter* embedding = store.find(info.tied_with);
    if (head && embedding) {
      kernels::add(device, embedding->gradient, head->gradient, embedding->gradient);
      device.copy(embedding->gradient, head->gradient);
    } else if (head || embedding) {
      CUBOID_CHECK(ends != nullptr, info.name + " is tied over two ranks without a communicator");
      all_reduce_in_place(*ends, (head ? head : embedding)->gradient);
    }
  }
}

std::vector<double> gradient_squares(const Device& device, const ParameterTable& table, const ParameterStore& store,
                                     Communicator& tensor, Communicator& pipeline) {
  const auto rows = static_cast<std::int64_t>(table.rows().size());
  const Tensor squares = device.zeros({rows}, DType::float64, Category::workspace);
  double* out = squares.data<double>();
  for (std::int64_t i = 0; i < rows; ++i) {
    const ParameterInfo& info = table.rows()[static_cast<std::size_t>(i)];
    const Parameter* p = info.tied_with.empty() ? store.find(info.name) : nullptr;
    if (!p) continue;
    if (info.pieces.size() < 2) {
      if (counts_piece(info, 0, tensor.rank(), tensor.size())) out[i] = kernels::sum_of_squares(device, p->gradient);
      continue;
    }
    std::int64_t row = 0;
    const auto ranges = owned_ranges(info, tensor.rank(), tensor.size());
    for (std::size_t piece = 0; piece < ranges.size(); ++piece) {
      if (counts_piece(info, static_cast<int>(piece), tensor.rank(), tensor.size())) {
        out[i] += kernels::sum_of_squares(device, p->gradient.narrow(row, ranges[piece].count));
      }
      row += ranges[piece].count;
    }
  }
  // Ranks that do not hold a parameter add zero, which changes no bit.
  all_reduce_in_place(tensor, squares);
  all_reduce_in_place(pipeline, squares);
  return {out, out + rows};
}

}  // namespace cuboid
