// Which elements of the global tensors a rank holds, writes and reads.
#include <algorithm>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "cuboid/models/registry.h"
#include "cuboid/train/checkpointing.h"

namespace cuboid {
namespace {

constexpr std::int64_t kMostSteps = std::numeric_limits<int>::max();
constexpr std::int64_t kMostSamples = std::int64_t{1} << 62;

std::string named(std::string_view kind, const std::string& parameter) {
  return std::string(kind) + parameter;
}

// Runs of this rank's shard, cut to elements [begin, end) of the shard.
std::vector<Run> runs_between(const ParameterStore& store, const ParameterInfo& info, std::int64_t begin,
                              std::int64_t end) {
  std::vector<Run> runs;
  for (const Run& run : shard_runs(info, store.tp_rank(), store.tp_size())) {
    const std::int64_t from = std::max(run.local, begin);
    const std::int64_t to = std::min(run.local + run.count, end);
    if (from < to) runs.push_back({from, run.global + from - run.local, to - from, run.piece});
  }
  return runs;
}

// Runs that follow each other in the shard, joined to slices: a column block becomes one slice.
struct LocalSlice {
  Slice slice;
  std::int64_t local = 0;  // of its first element
};
std::vector<LocalSlice> join_runs(const std::vector<Run>& runs) {
  std::vector<LocalSlice> slices;
  for (const Run& run : runs) {
    if (!slices.empty()) {
      auto& [slice, local] = slices.back();
      const bool adjacent = local + slice.elements() == run.local;
      if (adjacent && slice.repeat == 1 && slice.end() == run.global) {
        slice.length += run.count;
        continue;
      }
      const std::int64_t stride = run.global - (slice.start + slice.stride * (slice.repeat - 1));
      const bool regular = slice.repeat == 1 ? stride >= slice.length : stride == slice.stride;
      if (adjacent && run.count == slice.length && regular) {
        slice.stride = stride;
        ++slice.repeat;
        continue;
      }
    }
    slices.push_back({{run.global, run.count, 0, 1}, run.local});
  }
  return slices;
}

const Optimizer::Moments* moments_of(const Optimizer& optimizer, const ParameterBucket& bucket) {
  for (const auto& moments : optimizer.moments()) {
    if (moments.bucket == &bucket) return moments.m.defined() ? &moments : nullptr;
  }
  return nullptr;
}

// Deals parameters out over ranks that hold the same: the next one to whom has the least so far.
class Dealer {
 public:
  Dealer(int ranks, int rank) : loads_(static_cast<std::size_t>(ranks)), rank_(rank) {}
  bool mine(std::int64_t elements) {
    const auto least = std::min_element(loads_.begin(), loads_.end());
    *least += elements;
    return least - loads_.begin() == rank_;
  }

 private:
  std::vector<std::int64_t> loads_;
  int rank_;
};

// The tensor a parameter's numbers are stored under: a tied one's are its partner's.
const std::string& stored_name(const ParameterInfo& info) {
  return info.tied_with.empty() ? info.name : info.tied_with;
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, ParameterStore& store) : checkpoint_(checkpoint), store_(store) {}

  void weights(const Parameter& p) {
    // Without a whole copy of the values here, only the owned ones.
    const OwnedStretch own = store_.owned(p);
    const std::int64_t all = shard_shape(*p.info, store_.tp_rank(), store_.tp_size()).elements();
    const bool whole = p.value.defined();
    const std::int64_t begin = whole ? 0 : own.begin;
    const std::int64_t count = whole ? all : own.count;
    read(kWeights, *p.info, begin, count);
    if (count > 0) store_.write_values(p, begin, count, numbers_.data());
  }

  void moment(std::string_view kind, const Parameter& p, const Tensor& into) {
    const OwnedStretch own = store_.owned(p);
    if (own.count == 0) return;  // own.at may lie in another rank's part
    read(kind, *p.info, own.begin, own.count);
    store_.device().write(numbers_.data(), into.narrow(own.at, own.count));
  }

 private:
  // numbers_ = elements [begin, begin + count) of this rank's shard.
  void read(std::string_view kind, const ParameterInfo& info, std::int64_t begin, std::int64_t count) {
    std::vector<WantedRun> wanted;
    for (const Run& run : runs_between(store_, info, begin, begin + count)) {
      wanted.push_back({run.global, run.count, run.local - begin});
    }
    std::sort(wanted.begin(), wanted.end(), [](const auto& a, const auto& b) { return a.global < b.global; });
    numbers_.resize(static_cast<std::size_t>(count));
    const CheckpointTensor* tensor = checkpoint_.find_tensor(named(kind, stored_name(info)));
    CUBOID_CHECK(tensor != nullptr, "checkpoint without " + named(kind, stored_name(info)));
    checkpoint_.read(*tensor, wanted, numbers_.data());
  }

  const Checkpoint& checkpoint_;
  ParameterStore& store_;
  std::vector<float> numbers_;
};

bool has_moments(const Checkpoint& checkpoint) {
  const auto& tensors = checkpoint.index().tensors;
  return std::any_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.first.starts_with(kFirstMoments); });
}

}  // namespace

void check_checkpoint(const Checkpoint& checkpoint, const ModelConfig& model, Problems& problems) {
  const ParameterTable table = parameters_of(model);
  std::vector<std::string_view> kinds = {kWeights};
  if (has_moments(checkpoint)) kinds.insert(kinds.end(), {kFirstMoments, kSecondMoments});
  std::vector<std::string> faults;
  std::size_t known = 0;
  if (const auto& index = checkpoint.index(); index.step > kMostSteps || index.optimizer_steps > kMostSteps) {
    faults.push_back(fmt::format("{} steps are done; at most {} can be", index.step, kMostSteps));
  } else if (index.samples > kMostSamples) {
    faults.push_back(fmt::format("{} samples are consumed; at most {} can be", index.samples, kMostSamples));
  }
  for (const ParameterInfo& info : table.rows()) {
    if (!info.tied_with.empty()) continue;
    for (const std::string_view kind : kinds) {
      const CheckpointTensor* tensor = checkpoint.find_tensor(named(kind, info.name));
      if (tensor != nullptr) ++known;
      if (tensor == nullptr) {
        faults.push_back(fmt::format("{} is missing", named(kind, info.name)));
      } else if (tensor->shape != info.shape) {
        faults.push_back(fmt::format("{} has shape {}, the model needs {}", named(kind, info.name),
                                     to_string(tensor->shape), to_string(info.shape)));
      }
    }
  }
  const std::size_t more = checkpoint.index().tensors.size() - known;
  if (more > 0) faults.push_back(fmt::format("{} of its tensors do not belong to the model", more));
  constexpr std::size_t kMostFaults = 5;
  for (std::size_t i = 0; i < faults.size() && i < kMostFaults; ++i) {
    problems.add(fmt::format("--resume {}: is not of this model: {}", checkpoint.path(), faults[i]));
  }
  if (faults.size() > kMostFaults) {
    problems.add(fmt::format("--resume {}: {} more such differences", checkpoint.path(), faults.size() - kMostFaults));
  }
}

void load_checkpoint_weights(const Checkpoint& checkpoint, ParameterStore& store) {
  Loader loader(checkpoint, store);
  for (const Parameter* p : store.all()) {
    if (!store.shares_values(*p)) loader.weights(*p);
  }
}

void load_checkpoint(const Checkpoint& checkpoint, ParameterStore& store, Optimizer& optimizer) {
  Loader loader(checkpoint, store);
  const bool with_moments = has_moments(checkpoint);
  for (const Parameter* p : store.all()) {
    if (store.shares_values(*p)) continue;
    loader.weights(*p);
    const Optimizer::Moments* moments = moments_of(optimizer, store.bucket_of(*p));
    if (!with_moments || moments == nullptr) continue;
    loader.moment(kFirstMoments, *p, moments->m);
    loader.moment(kSecondMoments, *p, moments->v);
  }
  optimizer.set_steps(with_moments ? static_cast<int>(checkpoint.index().optimizer_steps) : 0);
}

OwnSlices slices_to_write(const ParameterStore& store, const Optimizer& optimizer) {
  OwnSlices made;
  std::map<const Buffer*, Tensor> here;           // a bucket's numbers in host memory, for all parameters in it
  std::map<const Communicator*, Dealer> dealers;  // of parameters with whole copies on a group's ranks
  for (const Parameter* p : store.all()) {
    const ParameterInfo& info = *p->info;
    if (!info.tied_with.empty()) continue;
    const OwnedStretch own = store.owned(*p);
    if (const ParameterBucket& bucket = store.bucket_of(*p); bucket.layout.parts == 1) {
      Communicator& copies = *bucket.copies;
      Dealer& dealer = dealers.try_emplace(&copies, copies.size(), copies.rank()).first->second;
      if (!dealer.mine(own.count)) continue;
    }
    std::vector<Run> runs = runs_between(store, info, own.begin, own.begin + own.count);
    std::erase_if(runs, [&](const Run& r) { return !counts_piece(info, r.piece, store.tp_rank(), store.tp_size()); });
    const ParameterBucket& bucket = store.bucket_of(*p);
    const Optimizer::Moments* moments = moments_of(optimizer, bucket);
    for (const auto& [slice, local] : join_runs(runs)) {
      const std::int64_t at = own.at + local - own.begin;
      const auto add = [&, &s = slice](std::string_view kind, const Tensor& part) {
        auto [copy, fresh] = here.try_emplace(part.buffer().get());
        if (fresh) copy->second = store.device().to_host(part);
        made.slices.push_back({named(kind, info.name), info.shape, s, copy->second.data<float>() + at});
      };
      add(kWeights, bucket.master);
      if (moments == nullptr) continue;
      add(kFirstMoments, moments->m);
      add(kSecondMoments, moments->v);
    }
  }
  for (auto& [buffer, tensor] : here) made.numbers.push_back(std::move(tensor));
  return made;
}

}  // namespace cuboid
