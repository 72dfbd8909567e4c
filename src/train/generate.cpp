#include "cuboid/train/generate.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "cuboid/comm/ranks.h"
#include "cuboid/core/random.h"
#include "cuboid/parallel/groups.h"
#include "cuboid/train/check.h"
#include "cuboid/train/pipeline_plan.h"

#include "model_stage.h"

namespace cuboid {
namespace {

/// Sequences are padded to a multiple of this: what a padded position holds is seen by no earlier one.
constexpr std::int64_t kLengthStep = 64;

// Uniform in [0, 1), of the seed and the position.
double uniform_of(std::uint64_t seed, std::int64_t position) {
  const auto at = static_cast<std::uint64_t>(position);
  const Philox4 words = philox(mix_key(seed, name_key("sample")), static_cast<std::uint32_t>(at),
                               static_cast<std::uint32_t>(at >> 32), 0, 0);
  return static_cast<double>(std::uint64_t{words.x[0]} << 21 | words.x[1] >> 11) * 0x1p-53;
}

RunConfig run_of(const GenerateRequest& request) {
  RunConfig run;
  run.grid = request.grid;
  run.dtype = request.dtype;
  run.global_batch = run.micro_batch = 1;
  return run;
}

/// A rank's part of the model and of the making of tokens.
class RankGenerator {
 public:
  RankGenerator(RankContext& context, const ModelConfig& model, const GenerateRequest& request,
                const std::vector<StageSpan>& spans)
      : device_(context.device),
        model_(model),
        request_(request),
        table_(parameters_of(model)),
        groups_(request.grid, *context.world),
        tp_{&groups_.axis(Axis::tp)},
        span_(spans[static_cast<std::size_t>(groups_.at()[Axis::pp])]),
        store_(device_, table_, {stage_blocks(span_)}, tp_.rank(), tp_.size(), {.dtype = request.dtype}) {}

  ParameterStore& store() { return store_; }

  /// Collective over the grid.
  std::vector<std::int32_t> run() {
    std::vector<std::int32_t> sequence = request_.prompt;
    while (std::ssize(sequence) < std::ssize(request_.prompt) + request_.tokens) {
      sequence.push_back(next_token(sequence));
      if (sequence.back() == request_.end) break;
    }
    return {sequence.begin() + std::ssize(request_.prompt), sequence.end()};
  }

 private:
  // The stage for sequences of at least this length.
  ModelStage& stage_for(std::int64_t length) {
    if (length > length_) {
      length_ = (length + kLengthStep - 1) / kLengthStep * kLengthStep;
      if (learns_positions(model_)) length_ = std::min(length_, model_.positions);
      stage_ = std::make_unique<ModelStage>(device_, model_, tp_, store_, span_, length_, Recompute::none);
    }
    return *stage_;
  }

  std::int32_t next_token(const std::vector<std::int32_t>& sequence) {
    const std::int64_t count = std::ssize(sequence);
    ModelStage& stage = stage_for(count);
    Tensor tokens = device_.host().zeros({length_, 1}, DType::int32);
    std::copy(sequence.begin(), sequence.end(), tokens.data<std::int32_t>());
    const std::vector<MicroBatch> batch = {
        {.tokens = device_.to_device(tokens), .targets = {}, .logits_at = count - 1}};
    stage.begin(batch, {}, 0, Tape::Mode::forward_only);
    Communicator& pipeline = groups_.axis(Axis::pp);
    Tensor x;
    if (!span_.first) x = pipeline.recv({length_, 1, model_.hidden}, request_.dtype, pipeline.rank() - 1, 0).wait();
    x = stage.forward(0, std::move(x));
    const Tensor chosen = device_.host().empty({1}, DType::int32);
    if (span_.last) {
      const Tensor logits = gather_vocabulary(device_, tp_, model_.vocab, stage.logits());
      *chosen.data<std::int32_t>() = choose_token(logits.span<float>(), request_.choice, count);
    } else {
      pipeline.send(std::move(x), pipeline.rank() + 1, 0).wait();
    }
    pipeline.broadcast(chosen, pipeline.size() - 1).wait();
    return *chosen.data<std::int32_t>();
  }

  Device device_;
  const ModelConfig& model_;
  const GenerateRequest& request_;
  ParameterTable table_;
  Groups groups_;
  TensorParallel tp_;
  StageSpan span_;
  ParameterStore store_;
  std::int64_t length_ = 0;
  std::unique_ptr<ModelStage> stage_;
};

}  // namespace

std::int32_t choose_token(std::span<const float> logits, const TokenChoice& choice, std::int64_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (choice.temperature == 0) return static_cast<std::int32_t>(best - logits.begin());
  std::vector<double> weights(logits.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i] = std::exp((double{logits[i]} - double{*best}) / choice.temperature);
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return weights[static_cast<std::size_t>(a)] > weights[static_cast<std::size_t>(b)];
  });
  // The nucleus (Holtzman et al. 2019, arXiv 1904.09751), and its share of a number drawn uniformly.
  const double wanted = choice.top_p * std::accumulate(weights.begin(), weights.end(), 0.0);
  double mass = 0;
  std::size_t kept = 0;
  while (kept < order.size() && (kept == 0 || mass < wanted)) mass += weights[static_cast<std::size_t>(order[kept++])];
  double left = uniform_of(choice.seed, position) * mass;
  for (std::size_t i = 0; i + 1 < kept; ++i) {
    left -= weights[static_cast<std::size_t>(order[i])];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

void check_generate(const ModelConfig& model, const GenerateRequest& request, Problems& problems) {
  check_split(model, run_of(request), problems);
  for (const Axis axis : kAxes) {
    const bool used = axis == Axis::tp || axis == Axis::pp;
    problems.add_if(!used && request.grid.degree(axis) != 1,
                    fmt::format("--{} {}: a sequence is made on tensor and pipeline ranks alone; use 1", name_of(axis),
                                request.grid.degree(axis)));
  }
  problems.add_if(request.prompt.empty(), "--prompt: gives no token to go on from");
  const auto beyond = std::find_if(request.prompt.begin(), request.prompt.end(),
                                   [&](std::int32_t id) { return id < 0 || id >= model.vocab; });
  problems.add_if(beyond != request.prompt.end(),
                  fmt::format("--prompt: holds token {}; the model knows 0 to {}",
                              beyond == request.prompt.end() ? 0 : *beyond, model.vocab - 1));
  problems.add_if(request.tokens < 1, fmt::format("--tokens {}: must be at least 1", request.tokens));
  const std::int64_t length = std::ssize(request.prompt) + request.tokens;
  problems.add_if(learns_positions(model) && length > model.positions,
                  fmt::format("--tokens {}: the prompt's {} tokens and these are more than the {} positions that the "
                              "model has learned; use at most {}",
                              request.tokens, request.prompt.size(), model.positions,
                              std::max<std::int64_t>(0, model.positions - std::ssize(request.prompt))));
  problems.add_if(!(request.choice.temperature >= 0 && std::isfinite(request.choice.temperature)),
                  fmt::format("--temperature {}: must be at least 0", request.choice.temperature));
  problems.add_if(!(request.choice.top_p > 0 && request.choice.top_p <= 1),
                  fmt::format("--top-p {}: must be above 0 and at most 1", request.choice.top_p));
}

std::vector<std::int32_t> generate(const ModelConfig& model, const GenerateRequest& request,
                                   const std::function<void(ParameterStore&)>& load) {
  const std::vector<StageSpan> spans = stage_spans(plan_pipeline(run_of(request), model).stage_layers);
  std::vector<std::int32_t> made;
  run_ranks(request.grid.world(),
            [&](RankContext& context) {
              RankGenerator generator(context, model, request, spans);
              load(generator.store());
              const std::vector<std::int32_t> mine = generator.run();
              if (context.rank == 0) made = mine;
            },
            {.deadline = request.deadline, .threads_per_rank = request.threads_per_rank});
  return made;
}

}  // namespace cuboid
