#include "cuboid/plan/memory.h"

#include <algorithm>
#include <map>
#include <set>

#include "cuboid/models/registry.h"
#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/plan/trace.h"
#include "cuboid/train/memory.h"

#include "train/model_stage.h"

namespace cuboid {
namespace {

constexpr std::int64_t kFloat = sizeof(float);

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(size_of(dtype));
}

/// A stage on one rank: its blocks, and its buckets.
struct StageUse {
  std::vector<const TracedBlock*> blocks;
  bool first = false;
  bool last = false;
  std::int64_t whole_gradients = 0;         ///< from ZeRO 2 on: while they are not reduced yet
  std::int64_t reduction = 0;               ///< messages of a reduction, until it is finished
  std::vector<const BucketLayout*> values;  ///< buckets that ZeRO 3 gathers for it
};

/// Live bytes and their peaks while a row is walked.
class Account {
 public:
  explicit Account(const MemoryUse& kept) : live_(kept.bytes) { raise({}, 0); }

  void add(Category category, std::int64_t bytes) {
    live_[static_cast<std::size_t>(category)] += bytes;
    raise({}, 0);
  }
  void add(const TracedBytes& bytes, std::int64_t sign) {
    live_[static_cast<std::size_t>(Category::activations)] += sign * bytes.activations;
    live_[static_cast<std::size_t>(Category::communication)] += sign * bytes.communication;
    live_[static_cast<std::size_t>(Category::workspace)] += sign * bytes.workspace;
    raise({}, 0);
  }
  // For a moment, so much more than what is live.
  void raise(const TracedBytes& more, std::int64_t total) {
    std::int64_t sum = total;
    for (std::size_t i = 0; i < live_.size(); ++i) {
      std::int64_t bytes = live_[i];
      if (i == static_cast<std::size_t>(Category::activations)) bytes += more.activations;
      if (i == static_cast<std::size_t>(Category::communication)) bytes += more.communication;
      if (i == static_cast<std::size_t>(Category::workspace)) bytes += more.workspace;
      peaks_.bytes[i] = std::max(peaks_.bytes[i], bytes);
      sum += live_[i];
    }
    peaks_.total = std::max(peaks_.total, sum);
  }
  const MemoryUse& peaks() const { return peaks_; }

 private:
  decltype(MemoryUse::bytes) live_;
  MemoryUse peaks_;
};

/// One rank: its row walked as the executor walks it.
class RankWalk {
 public:
  RankWalk(const RunConfig& run, const PipelineLayout& layout, const ParameterTable& table, const ModelTrace& trace,
           const Coordinate& where, const MemoryUse& kept, std::int64_t under_way)
      : run_(run),
        row_(layout.training.rows[at(where[Axis::pp])]),
        rank_of_stage_(layout.training.rank_of_stage()),
        pipeline_rank_(where[Axis::pp]),
        tensor_ranks_(run.grid.degree(Axis::tp)),
        under_way_(under_way),
        buckets_(lay_out_buckets(table, blocks_of_rank(layout, pipeline_rank_),
                                 parameter_cut(run.grid, where, run.zero), run.bucket_bytes)),
        where_(where),
        boundary_(trace.layers.front().output_bytes),
        loss_(bytes_of(run.micro_batch, DType::float64)),
        account_(kept) {
    for (const StageSpan& span : stage_spans(layout.stage_layers)) {
      if (rank_of_stage_[at(span.stage)] == pipeline_rank_) stages_[span.stage] = use_of(span, trace);
    }
  }

  MemoryUse run() {
    // Tokens and targets of all micro-batches.
    account_.add(Category::activations, 2 * bytes_of(std::int64_t{run_.seq_len} / run_.grid.degree(Axis::cp) *
                                                         run_.micro_batch * run_.micro_batches(),
                                                     DType::int32));
    for (const auto& [number, stage] : stages_) {
      std::set<const TracedBlock*> kinds(stage.blocks.begin(), stage.blocks.end());
      TracedBytes resident;
      for (const TracedBlock* kind : kinds) {
        resident.workspace = std::max(resident.workspace, kind->resident.workspace);
      }
      account_.add(resident, 1);
    }
    account_.add(Category::communication, under_way_);
    for (const Action& action : row_) walk(action);
    return account_.peaks();
  }

 private:
  StageUse use_of(const StageSpan& span, const ModelTrace& trace) const {
    StageUse use;
    use.first = span.first;
    use.last = span.last;
    if (span.first) use.blocks.push_back(&trace.embedding);
    for (int i = 0; i < span.layers; ++i) {
      use.blocks.push_back(&trace.layers[at(trace.kind_of_layer(span.first_layer + i))]);
    }
    if (span.last) use.blocks.push_back(&trace.head);
    for (const BucketLayout& bucket : buckets_) {
      if (bucket.stage != span.stage) continue;
      if (run_.zero >= 2) use.whole_gradients += kFloat * bucket.elements;
      use.reduction += message_bytes(bucket);
      const BucketLayout* owner = bucket.shares_values ? bucket_of(bucket.places.front().info->tied_with) : &bucket;
      if (std::find(use.values.begin(), use.values.end(), owner) == use.values.end()) use.values.push_back(owner);
    }
    return use;
  }

  const BucketLayout* bucket_of(const std::string& parameter) const {
    for (const BucketLayout& bucket : buckets_) {
      for (const ParameterPlace& place : bucket.places) {
        if (place.info->name == parameter) return &bucket;
      }
    }
    CUBOID_CHECK(false, parameter + " is not on this rank");
    return nullptr;
  }

  int copies_of(const BucketLayout& bucket) const {
    return bucket.experts ? run_.grid.expert_copies() : run_.grid.copies();
  }

  // What a bucket's reduction holds beside the gradients themselves (GradientReduction::start).
  std::int64_t message_bytes(const BucketLayout& bucket) const {
    if (copies_of(bucket) == 1 && run_.zero < 2) return 0;
    const bool rounds = run_.reduce_dtype != DType::float32;
    std::int64_t bytes = rounds ? bytes_of(bucket.elements, run_.reduce_dtype) : 0;
    if (run_.zero >= 2 || (rounds && run_.zero == 1)) bytes += bytes_of(bucket.part_elements(), run_.reduce_dtype);
    return bytes;
  }

  void walk(const Action& action) {
    switch (action.kind) {
      case ActionKind::forward:
        return forward(action.stage);
      case ActionKind::backward:
        return backward(action.stage, &TracedBlock::backward, true);
      case ActionKind::input_gradient:
        return backward(action.stage, &TracedBlock::input_gradient, false);
      case ActionKind::weight_gradient:
        return weights(action.stage);
      case ActionKind::reduce_gradient:
        return reduce(action.stage);
      case ActionKind::unshard:
        for (const BucketLayout* bucket : stages_.at(action.stage).values) {
          if (users_[bucket]++ == 0) account_.add(Category::communication, bytes_of(bucket->elements, run_.dtype));
        }
        return;
      case ActionKind::reshard:
        for (const BucketLayout* bucket : stages_.at(action.stage).values) {
          if (--users_[bucket] == 0) account_.add(Category::communication, -bytes_of(bucket->elements, run_.dtype));
        }
        return;
      case ActionKind::step:
        return step();
      default:
        return;  // transfers: counted as under way
    }
  }

  bool local(int stage) const {
    return stage >= 0 && stage < static_cast<int>(rank_of_stage_.size()) && rank_of_stage_[at(stage)] == pipeline_rank_;
  }

  void forward(int number) {
    const StageUse& stage = stages_.at(number);
    if (local(number - 1)) account_.add(Category::activations, -boundary_);
    for (const TracedBlock* block : stage.blocks) {
      account_.raise(block->forward.peak, block->forward.peak_total);
      account_.add(block->kept, 1);
    }
    // Handed to a stage of this rank it waits here; to another rank, it is under way.
    if (!stage.last && local(number + 1)) account_.add(Category::activations, boundary_);
  }

  void backward(int number, TracedPass TracedBlock::*pass, bool whole) {
    const StageUse& stage = stages_.at(number);
    if (!stage.last && local(number + 1)) account_.add(Category::activations, -boundary_);
    if (whole) acquire(number);
    for (auto block = stage.blocks.rbegin(); block != stage.blocks.rend(); ++block) {
      account_.add((*block)->kept, -1);
      account_.raise(((*block)->*pass).peak, ((*block)->*pass).peak_total);
      if (!whole) account_.add((*block)->kept_after_input_gradient, 1);
    }
    if (whole && stage.last) account_.add(Category::activations, loss_);
    if (!stage.first && local(number - 1)) account_.add(Category::activations, boundary_);
  }

  void weights(int number) {
    const StageUse& stage = stages_.at(number);
    acquire(number);
    for (auto block = stage.blocks.rbegin(); block != stage.blocks.rend(); ++block) {
      account_.add((*block)->kept_after_input_gradient, -1);
      account_.raise((*block)->weight_gradient.peak, (*block)->weight_gradient.peak_total);
    }
    if (stage.last) account_.add(Category::activations, loss_);
  }

  // A stage's whole gradients and their messages exist from its weight gradients to their reduction.
  void acquire(int number) {
    const StageUse& stage = stages_.at(number);
    if (run_.zero < 2) return;
    account_.add(Category::communication, stage.whole_gradients);
    account_.add(Category::communication, stage.reduction);
  }

  void reduce(int number) {
    const StageUse& stage = stages_.at(number);
    if (run_.zero >= 2) {
      // Of bfloat16 sums, one bucket's at a time is made wide to be added.
      if (run_.reduce_dtype != DType::float32) {
        std::int64_t widest = 0;
        for (const BucketLayout& bucket : buckets_) {
          if (bucket.stage == number) widest = std::max(widest, kFloat * bucket.part_elements());
        }
        account_.raise({.communication = widest}, widest);
      }
      account_.add(Category::communication, -stage.whole_gradients);
      account_.add(Category::communication, -stage.reduction);
      return;
    }
    // Before: once a step, after the last micro-batch.
    account_.raise({.communication = stage.reduction}, stage.reduction);
  }

  // Gradients that are partial over the tensor axis travel packed (TensorPartialGradients), a group at a time.
  void step() {
    if (tensor_ranks_ == 1) return;
    std::map<int, std::int64_t> packed;  // by number of copies; 0: all tensor ranks
    for (const BucketLayout& bucket : buckets_) {
      for (const ParameterPlace& place : bucket.places) add_partial(bucket, place, packed);
    }
    for (const auto& [copies, elements] : packed) {
      const std::int64_t bytes = bytes_of(elements, run_.reduce_dtype);
      account_.raise({.communication = bytes}, bytes);
    }
  }

  void add_partial(const BucketLayout& bucket, const ParameterPlace& place, std::map<int, std::int64_t>& packed) const {
    const ParameterInfo& info = *place.info;
    if (info.split_dim < 0) {
      if (run_.sequence_parallel) packed[0] += owned(bucket, place.offset, place.shape.elements());
      return;
    }
    const auto ranges = owned_ranges(info, 0, tensor_ranks_);
    const std::int64_t row = info.split_dim == 0 ? info.shape.elements() / info.shape[0] : 0;
    std::int64_t begin = place.offset;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const int copies = replicas(info.pieces[i], tensor_ranks_);
      if (copies > 1) packed[copies] += owned(bucket, begin, ranges[i].count * row);
      begin += ranges[i].count * row;
    }
  }

  // How many of these elements of the bucket lie in the part that this rank owns.
  std::int64_t owned(const BucketLayout& bucket, std::int64_t begin, std::int64_t count) const {
    const int copy = bucket.experts ? run_.grid.expert_copy_rank(where_) : run_.grid.copy_rank(where_);
    const std::int64_t part = bucket.parts > 1 ? copy : 0;
    const std::int64_t first = std::max(begin, part * bucket.part_elements());
    const std::int64_t end = std::min(begin + count, (part + 1) * bucket.part_elements());
    return std::max<std::int64_t>(0, end - first);
  }

  const RunConfig& run_;
  const std::vector<Action>& row_;
  std::vector<int> rank_of_stage_;
  int pipeline_rank_;
  int tensor_ranks_;
  std::int64_t under_way_;
  std::vector<BucketLayout> buckets_;
  Coordinate where_;
  std::int64_t boundary_;
  std::int64_t loss_;
  Account account_;
  std::map<int, StageUse> stages_;
  std::map<const BucketLayout*, int> users_;
};

// The most messages of each rank that are under way at once: from the end of the action that made one to the start of
// the action that takes it.
std::vector<int> messages_under_way(const PipelineLayout& layout) {
  const Simulation simulation = simulate(layout.schedule, layout.costs);
  const std::vector<int> ranks = layout.schedule.rank_of_stage();
  struct Key {
    int stage, micro_batch;
    bool backward;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, Span> spans;
  for (const auto& row : simulation.spans) {
    for (const Span& span : row) {
      const ActionKind kind = span.action.kind;
      if (kind == ActionKind::forward || makes_input_gradient(kind)) {
        spans[{span.action.stage, span.action.micro_batch, kind != ActionKind::forward}] = span;
      }
    }
  }
  std::vector<std::map<double, int>> changes(simulation.spans.size());
  const double moment = simulation.makespan * 1e-9;  // one taken when the next is sent does not meet it
  for (const auto& [key, span] : spans) {
    const int to = key.stage + (key.backward ? -1 : 1);
    const auto taken = spans.find({to, key.micro_batch, key.backward});
    if (taken == spans.end() || ranks[at(to)] == ranks[at(key.stage)]) continue;
    auto& mine = changes[at(ranks[at(key.stage)])];
    ++mine[span.end];
    --mine[taken->second.begin + moment];
  }
  std::vector<int> most;
  for (const auto& mine : changes) {
    int now = 0;
    int peak = 0;
    for (const auto& [time, change] : mine) peak = std::max(peak, now += change);
    most.push_back(peak);
  }
  return most;
}

}  // namespace

std::vector<MemoryUse> predict_memory(const RunConfig& run, const ModelConfig& model, const PipelineLayout& layout) {
  const ParameterTable table = parameters_of(model);
  const std::vector<MemoryUse> kept = kept_memory(run, model, layout);
  const std::vector<int> under_way = messages_under_way(layout);
  std::vector<ModelTrace> traces;
  for (int rank = 0; rank < run.grid.degree(Axis::tp); ++rank) {
    traces.push_back(trace_model(model, trace_options(run, rank)));
  }
  std::map<std::array<int, 3>, MemoryUse> known;  // by pp and tp coordinate and copy
  std::vector<MemoryUse> ranks;
  for (int rank = 0; rank < run.grid.world(); ++rank) {
    const Coordinate where = run.grid.coordinate(rank);
    const auto [found, is_new] = known.try_emplace({where[Axis::pp], where[Axis::tp], run.grid.copy_rank(where)});
    if (is_new) {
      const ModelTrace& trace = traces[at(where[Axis::tp])];
      const std::int64_t messages = under_way[at(where[Axis::pp])] * trace.layers.front().output_bytes;
      found->second = RankWalk(run, layout, table, trace, where, kept[at(rank)], messages).run();
    }
    ranks.push_back(found->second);
  }
  return ranks;
}

}  // namespace cuboid
