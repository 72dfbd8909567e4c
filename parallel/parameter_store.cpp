#include "cuboid/parallel/parameter_store.h"

#include <algorithm>

#include "cuboid/core/random.h"
#include "cuboid/kernels/kernels.h"

namespace cuboid {
ParameterStore::ParameterStore(const Device& device, const ParameterTable& table,
                               const std::vector<StageBlocks>& stages, int tp_rank, int tp_size,
                               const ParameterOptions& options)
    : ParameterStore(device, table, stages, tp_rank, tp_size, make_self_communicator(device), options) {}

ParameterStore::ParameterStore(const Device& device, const ParameterTable& table,
                               const std::vector<StageBlocks>& stages, int tp_rank, int tp_size,
                               std::unique_ptr<Communicator> alone, const ParameterOptions& options)
    : ParameterStore(device, table, stages, tp_rank, tp_size, CopyGroups(*alone), options) {
  alone_ = std::move(alone);
}

ParameterStore::ParameterStore(const Device& device, const ParameterTable& table,
                               const std::vector<StageBlocks>& stages, int tp_rank, int tp_size,
                               const CopyGroups& copies, const ParameterOptions& options)
    : device_(device), options_(options), tp_rank_(tp_rank), tp_size_(tp_size), copies_(copies) {
  const ParameterCut cut{.tp_rank = tp_rank,
                         .tp_size = tp_size,
                         .ep_rank = copies.ep_rank,
                         .ep_size = copies.ep_size,
                         .dense_parts = parts_of_buckets(options.zero, copies.dense->size()),
                         .expert_parts = parts_of_buckets(options.zero, copies.experts->size())};
  for (BucketLayout& layout : lay_out_buckets(table, stages, cut, options.bucket_bytes)) {
    ParameterBucket& bucket = buckets_.emplace_back();
    bucket.layout = std::move(layout);
    bucket.copies = bucket.layout.experts ? copies.experts : copies.dense;
    bucket.owned_part = bucket.layout.parts > 1 ? bucket.copies->rank() : 0;
    for (const ParameterPlace& place : bucket.layout.places) {
      Parameter& made = storage_.emplace_back();
      made.info = place.info;
      bucket.parameters.push_back(&made);
      by_name_[place.info->name] = &made;
      bucket_of_[&made] = &bucket;
    }
  }
  for (const ParameterInfo& info : table.rows()) {
    if (Parameter* p = find(info.name)) all_.push_back(p);
  }
  for (ParameterBucket& bucket : buckets_) allocate(bucket);
}

Tensor ParameterStore::owned_part(const ParameterBucket& bucket, const Tensor& whole) const {
  return whole.narrow(bucket.owned_begin(), bucket.layout.part_elements());
}

void ParameterStore::allocate(ParameterBucket& bucket) {
  const BucketLayout& layout = bucket.layout;
  const BucketShare kept = kept_share(layout, options_.zero);
  const DType gradient_type = options_.dtype == DType::float64 ? DType::float64 : DType::float32;
  if (!layout.shares_values) {
    const Tensor values = device_.zeros({kept.values}, options_.dtype, Category::parameters);
    if (options_.zero < 3) {
      bucket.values = values;
      bucket.value_shard = owned_part(bucket, values);
    } else {
      bucket.value_shard = values;
    }
    bucket.master = options_.dtype == DType::bfloat16
                        ? device_.zeros({kept.masters}, DType::float32, Category::optimizer)
                        : bucket.value_shard;
  }
  const Tensor gradients = device_.zeros({kept.gradients}, gradient_type, Category::gradients);
  if (options_.zero < 2) {
    bucket.gradients = gradients;
    bucket.gradient_shard = owned_part(bucket, gradients);
    attach_gradients(bucket);
  } else {
    bucket.gradient_shard = gradients;
  }
  attach_values(bucket);
}

void ParameterStore::attach_values(ParameterBucket& bucket) {
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    Parameter& p = *bucket.parameters[i];
    const ParameterPlace& place = bucket.layout.places[i];
    if (bucket.layout.shares_values) continue;  // attached with its partner
    p.value = bucket.values.defined() ? bucket.values.narrow(place.offset, place.shape.elements()).reshape(place.shape)
                                      : Tensor();
    for (Parameter& other : storage_) {
      if (other.info->tied_with == p.info->name) other.value = p.value;
    }
  }
}

void ParameterStore::attach_gradients(ParameterBucket& bucket) {
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const ParameterPlace& place = bucket.layout.places[i];
    bucket.parameters[i]->gradient =
        bucket.gradients.defined() ? bucket.gradients.narrow(place.offset, place.shape.elements()).reshape(place.shape)
                                   : Tensor();
  }
}

Parameter* ParameterStore::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

OwnedStretch ParameterStore::owned(const Parameter& parameter) const {
  const ParameterBucket& bucket = bucket_of(parameter);
  const auto index = std::find(bucket.parameters.begin(), bucket.parameters.end(), &parameter);
  const ParameterPlace& place = bucket.layout.places[static_cast<std::size_t>(index - bucket.parameters.begin())];
  const std::int64_t first = bucket.owned_begin();
  const std::int64_t begin = std::clamp<std::int64_t>(first - place.offset, 0, place.shape.elements());
  const std::int64_t end =
      std::clamp<std::int64_t>(first + bucket.layout.part_elements() - place.offset, 0, place.shape.elements());
  return {begin, end - begin, place.offset + begin - first};
}

void ParameterStore::zero_gradients() {
  for (ParameterBucket& bucket : buckets_) {
    if (bucket.gradients.defined()) device_.zero(bucket.gradients);
    if (options_.zero >= 2) device_.zero(bucket.gradient_shard);
  }
}

void ParameterStore::acquire_gradient(Parameter& parameter) {
  ParameterBucket& bucket = bucket_of(parameter);
  if (bucket.gradients.defined()) return;
  bucket.gradients = device_.zeros({bucket.layout.elements}, bucket.gradient_shard.dtype(), Category::communication);
  attach_gradients(bucket);
}

void ParameterStore::release_gradient(ParameterBucket& bucket) {
  CUBOID_CHECK(options_.zero >= 2, "whole gradients are kept");
  bucket.gradients = Tensor();
  attach_gradients(bucket);
}

// Buckets whose values a stage computes with: its own, and the embedding's for a tied head.
std::vector<ParameterBucket*> ParameterStore::value_buckets(int stage) {
  std::vector<ParameterBucket*> used;
  for (ParameterBucket& bucket : buckets_) {
    if (bucket.layout.stage != stage) continue;
    ParameterBucket* owner =
        bucket.layout.shares_values ? &bucket_of(*find(bucket.parameters.front()->info->tied_with)) : &bucket;
    if (std::find(used.begin(), used.end(), owner) == used.end()) used.push_back(owner);
  }
  return used;
}

void ParameterStore::unshard(int stage) {
  if (options_.zero < 3) return;
  for (ParameterBucket* bucket : value_buckets(stage)) {
    if (bucket->users++ > 0) continue;
    bucket->values = device_.empty({bucket->layout.elements}, options_.dtype, Category::communication);
    bucket->gather = bucket->copies->all_gather(bucket->value_shard, bucket->values);
  }
}

void ParameterStore::await_values(int stage) {
  if (options_.zero < 3) return;
  for (ParameterBucket* bucket : value_buckets(stage)) {
    CUBOID_CHECK(bucket->users > 0, "stage " + std::to_string(stage) + " computes while it is sharded");
    bucket->gather.wait();
    attach_values(*bucket);
  }
}

void ParameterStore::reshard(int stage) {
  if (options_.zero < 3) return;
  for (ParameterBucket* bucket : value_buckets(stage)) {
    CUBOID_CHECK(bucket->users > 0, "stage " + std::to_string(stage) + " is freed twice");
    if (--bucket->users > 0) continue;
    bucket->gather.wait();
    bucket->values = Tensor();
    attach_values(*bucket);
  }
}

void ParameterStore::write_values(const Parameter& parameter, std::int64_t begin, std::int64_t count,
                                  const float* numbers) {
  const ParameterBucket& bucket = bucket_of(parameter);
  if (parameter.value.defined()) {
    kernels::convert(device_, numbers, parameter.value.reshape({parameter.value.elements()}).narrow(begin, count));
  }
  const OwnedStretch own = owned(parameter);
  const std::int64_t first = std::max(begin, own.begin);
  const std::int64_t end = std::min(begin + count, own.begin + own.count);
  if (first >= end) return;
  const std::int64_t at = own.at + first - own.begin;
  for (const Tensor* target : {&bucket.master, &bucket.value_shard}) {
    kernels::convert(device_, numbers + (first - begin), target->narrow(at, end - first));
  }
}

void ParameterStore::initialize(std::uint64_t seed) {
  std::vector<float> numbers;
  for (const Parameter& p : storage_) {
    if (shares_values(p)) continue;
    const ParameterInfo& info = *p.info;
    // A tied parameter starts from the very numbers of its partner.
    const std::string& identity = info.tied_with.empty() ? info.name : info.tied_with;
    const std::uint64_t key = mix_key(mix_key(seed, name_key("initialize")), name_key(identity));
    for (const Run& run : shard_runs(info, tp_rank_, tp_size_)) {
      numbers.assign(static_cast<std::size_t>(run.count), info.initializer == Initializer::ones ? 1.0F : 0.0F);
      if (info.initializer == Initializer::normal) {
        for (std::int64_t i = 0; i < run.count; ++i) {
          numbers[static_cast<std::size_t>(i)] =
              static_cast<float>(info.init_std * normal_of(key, static_cast<std::uint64_t>(run.global + i)));
        }
      }
      write_values(p, run.local, run.count, numbers.data());
    }
  }
}

void ParameterStore::publish() {
  if (options_.zero == 0 || options_.zero == 3) return;
  std::vector<Work> gathers;
  for (ParameterBucket& bucket : buckets_) {
    if (bucket.layout.shares_values || bucket.layout.parts == 1) continue;
    gathers.push_back(bucket.copies->all_gather(bucket.value_shard, bucket.values));
  }
  for (Work& work : gathers) work.wait();
}

}  // namespace cuboid
