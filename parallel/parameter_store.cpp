#include "cuboid/parallel/parameter_store.h"

#include <cstring>

#include "cuboid/core/random.h"

namespace cuboid {
namespace {

std::int64_t padded(std::int64_t elements) {
  return (elements + ParameterStore::kAlignment - 1) / ParameterStore::kAlignment * ParameterStore::kAlignment;
}

template <typename T>
void initialize_values(const Parameter& parameter, std::uint64_t seed, int rank, int size) {
  const ParameterInfo& info = *parameter.info;
  T* out = parameter.value.data<T>();
  if (info.initializer != Initializer::normal) {
    const T value = info.initializer == Initializer::ones ? T{1} : T{0};
    std::fill(out, out + parameter.value.elements(), value);
    return;
  }
  // A tied parameter starts from the very numbers of its partner.
  const std::string& identity = info.tied_with.empty() ? info.name : info.tied_with;
  const std::uint64_t key = mix_key(mix_key(seed, name_key("initialize")), name_key(identity));
  for (const Run& run : shard_runs(info, rank, size)) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      out[run.local + i] = static_cast<T>(info.init_std * normal_of(key, static_cast<std::uint64_t>(run.global + i)));
    }
  }
}

}  // namespace

ParameterStore::ParameterStore(const Device& device, const ParameterTable& table,
                               const std::vector<StageBlocks>& stages, int tp_rank, int tp_size, DType dtype)
    : tp_rank_(tp_rank), tp_size_(tp_size) {
  std::int64_t gradient_elements = 0;
  std::int64_t value_elements = 0;
  const auto lives_here = [&](const std::string& name) {
    const int block = table.at(name).block;
    for (const auto& s : stages) {
      if (block >= s.begin && block < s.end) return true;
    }
    return false;
  };
  struct Place {
    const ParameterInfo* info;
    std::int64_t value, gradient;
    bool shared;
  };
  std::vector<std::vector<Place>> places;
  std::vector<std::int64_t> first_gradient;
  for (const auto& s : stages) {
    places.emplace_back();
    first_gradient.push_back(gradient_elements);
    for (const auto& info : table.rows()) {
      if (info.block < s.begin || info.block >= s.end) continue;
      const std::int64_t elements = padded(shard_shape(info, tp_rank, tp_size).elements());
      const bool shared = !info.tied_with.empty() && lives_here(info.tied_with);
      places.back().push_back({&info, value_elements, gradient_elements, shared});
      gradient_elements += elements;
      value_elements += shared ? 0 : elements;
    }
  }
  const Tensor values = device.zeros({value_elements}, dtype, Category::parameters);
  gradients_ = device.zeros({gradient_elements}, dtype, Category::gradients);
  first_gradient.push_back(gradient_elements);

  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageParameters stage{stages[s].stage, {}, {}};
    stage.gradients = gradients_.narrow(first_gradient[s], first_gradient[s + 1] - first_gradient[s]);
    for (const Place& place : places[s]) {
      const Shape shape = shard_shape(*place.info, tp_rank, tp_size);
      Parameter& made = storage_.emplace_back();
      made.info = place.info;
      if (!place.shared) made.value = values.narrow(place.value, shape.elements()).reshape(shape);
      made.gradient = gradients_.narrow(place.gradient, shape.elements()).reshape(shape);
      by_name_[place.info->name] = &made;
      all_.push_back(&made);
      stage.parameters.push_back(&made);
    }
    stages_.push_back(std::move(stage));
  }
  for (Parameter& p : storage_) {
    if (!p.value.defined()) p.value = by_name_.at(p.info->tied_with)->value;
  }
}

Parameter* ParameterStore::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : found->second;
}

bool ParameterStore::shares_values(const Parameter& parameter) const {
  return !parameter.info->tied_with.empty() && find(parameter.info->tied_with) != nullptr;
}

void ParameterStore::zero_gradients() {
  std::memset(gradients_.raw(), 0, gradients_.bytes());
}

void ParameterStore::initialize(std::uint64_t seed) {
  for (const Parameter& p : storage_) {
    if (shares_values(p)) continue;
    if (p.value.dtype() == DType::float64) {
      initialize_values<double>(p, seed, tp_rank_, tp_size_);
    } else {
      initialize_values<float>(p, seed, tp_rank_, tp_size_);
    }
  }
}

}  // namespace cuboid
