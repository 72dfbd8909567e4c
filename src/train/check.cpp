#include "cuboid/train/check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "cuboid/core/text.h"
#include "cuboid/models/registry.h"
#include "cuboid/parallel/pipeline/select.h"

namespace cuboid {
namespace {

bool kv_heads_fit(const ModelConfig& model, std::int64_t tp) {
  return model.kv_heads % tp == 0 || tp % model.kv_heads == 0;
}

void check_tensor_degree(const ModelConfig& model, const RunConfig& run, Problems& problems) {
  const int tp = run.grid.degree(Axis::tp);
  std::vector<std::string> faults;
  if (model.heads % tp != 0) {
    faults.push_back(fmt::format("{} attention heads cannot be split over {} ranks", model.heads, tp));
  }
  if (model.kv_heads != model.heads && !kv_heads_fit(model, tp)) {
    faults.push_back(
        fmt::format("{} key/value heads can neither be split over nor replicated on {} ranks", model.kv_heads, tp));
  }
  if (model.ffn % tp != 0) {
    faults.push_back(fmt::format("an MLP of width {} cannot be split over {} ranks", model.ffn, tp));
  }
  if (model.vocab < tp) {
    faults.push_back(fmt::format("a vocabulary of {} cannot be split over {} ranks", model.vocab, tp));
  }
  if (faults.empty()) return;
  const auto degrees = usable_tensor_degrees(model);
  const std::string usable = alternatives({degrees.begin(), degrees.end()});
  for (const auto& fault : faults) problems.add(fmt::format("--tp {}: {}; use {}", tp, fault, usable));
}

// Experts and what belongs to them: none of it is ignored on a model that has none.
void check_experts(const ModelConfig& model, const RunConfig& run, Problems& problems) {
  const int ep = run.grid.degree(Axis::ep);
  if (model.experts > 0) {
    if (model.experts % ep == 0) return;
    const auto degrees = usable_expert_degrees(model);
    problems.add(fmt::format("--ep {}: {} experts cannot be split over {} ranks; use {}", ep, model.experts, ep,
                             alternatives({degrees.begin(), degrees.end()})));
    return;
  }
  problems.add_if(ep > 1, fmt::format("--ep {}: a {} has no experts to split; use 1, or --dp for more data ranks", ep,
                                      model.family));
  const auto no_router = [&](const char* flag, double value) {
    problems.add_if(value != 0, fmt::format("--{} {}: a {} has no router", flag, exact(value), model.family));
  };
  no_router("router-aux-loss", run.router_aux_loss);
  no_router("router-z-loss", run.router_z_loss);
}

void check_context(const ModelConfig& model, const RunConfig& run, Problems& problems) {
  const int cp = run.grid.degree(Axis::cp);
  problems.add_if(cp > 1 && !model_of(model).splits_context(),
                  fmt::format("--cp {}: a {} has layers that do not work on parts of sequences "
                              "(Model::splits_context); use 1",
                              cp, model.family));
}

void check_world(const RunConfig& run, Problems& problems) {
  if (run.grid.world() <= kMostRanksPerProcess) return;
  const auto also = [&](Axis axis) {
    const int degree = run.grid.degree(axis);
    return degree > 1 ? fmt::format(" x --{} {}", name_of(axis), degree) : "";
  };
  problems.add(fmt::format("the grid has {} ranks (--tp {} x --pp {} x --dp {}{}{}); one process runs at most {}",
                           run.grid.world(), run.grid.degree(Axis::tp), run.grid.degree(Axis::pp),
                           run.grid.degree(Axis::dp), also(Axis::cp), also(Axis::ep), kMostRanksPerProcess));
}

bool batch_divides(const RunConfig& run) {
  return run.micro_batch >= 1 && run.global_batch >= 1 &&
         run.global_batch % (std::int64_t{run.grid.data_degree()} * run.micro_batch) == 0;
}

// Whether the schedule exists for this run; its number of stages, or that of the ranks if it does not.
int check_schedule(const RunConfig& run, Problems& problems) {
  if (std::any_of(run.stage_layers.begin(), run.stage_layers.end(), [](int n) { return n < 1; })) {
    problems.add(fmt::format("--stage-layers {}: every stage needs at least one layer",
                             fmt::format("{}", fmt::join(run.stage_layers, ","))));
  }
  problems.add_if(run.max_activations < 0,
                  fmt::format("--max-activations {}: must be at least 1, or 0 for any number", run.max_activations));
  if (run.zero < 0 || run.zero > 3) problems.add(fmt::format("--zero {}: use 0, 1, 2 or 3", run.zero));
  problems.add_if(run.bucket_bytes < 1, fmt::format("--bucket-bytes {}: must be at least 1", run.bucket_bytes));
  RunConfig asked = run;
  if (!batch_divides(run)) {  // reported elsewhere: any number of micro-batches serves to check the rest
    asked.micro_batch = 1;
    asked.global_batch = run.grid.data_degree() * 2 * run.grid.degree(Axis::pp);
  }
  try {
    return stages_of(asked);
  } catch (const Error& error) {
    problems.add(error.what());
    return run.grid.degree(Axis::pp);
  }
}

void check_stages(const ModelConfig& model, const RunConfig& run, int stages, Problems& problems) {
  const int pp = run.grid.degree(Axis::pp);
  const std::string made =
      stages == pp ? fmt::format("--pp {}", pp) : fmt::format("--pp {} x {} stages a rank", pp, stages / pp);
  if (stages > model.layers) {
    const std::int64_t most = model.layers / (stages / pp);
    problems.add(fmt::format("{}: {} layers cannot fill {} stages; use at most {}", made, model.layers, stages,
                             most > 0 ? std::to_string(most) : fmt::format("{} a rank", model.layers / pp)));
  }
  if (run.stage_layers.empty()) return;
  const std::int64_t sum = std::accumulate(run.stage_layers.begin(), run.stage_layers.end(), std::int64_t{0});
  const std::string given = "--stage-layers " + fmt::format("{}", fmt::join(run.stage_layers, ","));
  if (std::cmp_not_equal(run.stage_layers.size(), stages)) {
    problems.add(fmt::format("{}: names {} stages; {} makes {}", given, run.stage_layers.size(), made, stages));
  }
  if (sum != model.layers) {
    problems.add(fmt::format("{}: the sum is {}; the model has {} layers", given, sum, model.layers));
  }
}

// What the sequence length must be a multiple of.
std::int64_t sequence_unit(const RunConfig& run) {
  const std::int64_t cp = run.grid.degree(Axis::cp);
  const std::int64_t tp = run.sequence_parallel ? run.grid.degree(Axis::tp) : 1;
  return cp > 1 ? std::lcm(2 * cp, cp * tp) : tp;
}

void check_sequence(const RunConfig& run, Problems& problems) {
  if (run.seq_len < 1) {
    problems.add(fmt::format("--seq-len {}: must be at least 1", run.seq_len));
    return;
  }
  const std::int64_t unit = sequence_unit(run);
  if (run.seq_len % unit == 0) return;
  const int cp = run.grid.degree(Axis::cp);
  std::vector<std::string> cuts;
  if (cp > 1) cuts.push_back(fmt::format("--cp {} cuts it into {} chunks, two a rank", cp, 2 * cp));
  if (run.sequence_parallel) {
    cuts.push_back(fmt::format("--sequence-parallel splits {} over {} ranks", cp > 1 ? "a rank's part" : "it",
                               run.grid.degree(Axis::tp)));
  }
  const std::int64_t below = run.seq_len / unit * unit;
  problems.add(fmt::format("--seq-len {}: {}; use {}{}", run.seq_len, join(cuts, " and "),
                           below > 0 ? fmt::format("{} or ", below) : "", below + unit));
}

void check_positions(const ModelConfig& model, const RunConfig& run, Problems& problems) {
  if (run.seq_len > model.positions && learns_positions(model)) {
    problems.add(fmt::format("--seq-len {}: the model has a learned embedding for {} positions; use at most {}",
                             run.seq_len, model.positions, model.positions));
  }
}

void check_batch(const RunConfig& run, Problems& problems) {
  problems.add_if(run.micro_batch < 1, fmt::format("--micro-batch {}: must be at least 1", run.micro_batch));
  problems.add_if(run.global_batch < 1, fmt::format("--global-batch {}: must be at least 1", run.global_batch));
  if (run.micro_batch < 1 || run.global_batch < 1) return;
  const int ep = run.grid.degree(Axis::ep);
  const std::int64_t unit = std::int64_t{run.grid.data_degree()} * run.micro_batch;
  if (batch_divides(run)) return;
  const std::int64_t below = run.global_batch / unit * unit;
  std::vector<std::int64_t> near;
  if (below > 0) near.push_back(below);
  near.push_back(below + unit);
  problems.add(fmt::format("--global-batch {}: must be a multiple of --dp {}{} x --micro-batch {} = {}; use {}",
                           run.global_batch, run.grid.degree(Axis::dp), ep > 1 ? fmt::format(" x --ep {}", ep) : "",
                           run.micro_batch, unit, alternatives(near)));
}

struct Interval {
  double least = 0;
  double most = std::numeric_limits<double>::infinity();
  bool open_below = false;
  bool open_above = false;
};

void check_interval(const char* flag, double value, const Interval& allowed, Problems& problems) {
  const bool low = allowed.open_below ? value <= allowed.least : value < allowed.least;
  const bool high = allowed.open_above ? value >= allowed.most : value > allowed.most;
  if (std::isfinite(value) && !low && !high) return;
  std::string range =
      fmt::format("{} {}", allowed.open_below ? "must be more than" : "must be at least", allowed.least);
  if (std::isfinite(allowed.most)) {
    range += fmt::format(" and {} {}", allowed.open_above ? "less than" : "at most", allowed.most);
  }
  problems.add(fmt::format("{} {}: {}", flag, value, range));
}

void check_optimizer(const RunConfig& run, Problems& problems) {
  const OptimizerConfig& o = run.optimizer;
  const Interval probability{.least = 0, .most = 1, .open_above = true};
  check_interval("--dropout", run.dropout, probability, problems);
  check_interval("--router-aux-loss", run.router_aux_loss, {}, problems);
  check_interval("--router-z-loss", run.router_z_loss, {}, problems);
  check_interval("--lr", o.lr, {}, problems);
  check_interval("--min-lr", o.min_lr, {}, problems);
  check_interval("--weight-decay", o.weight_decay, {}, problems);
  check_interval("--beta1", o.beta1, probability, problems);
  check_interval("--beta2", o.beta2, probability, problems);
  check_interval("--eps", o.eps, {.open_below = true}, problems);
  check_interval("--clip-grad", o.clip_grad, {}, problems);
  problems.add_if(o.min_lr > o.lr, fmt::format("--min-lr {}: exceeds --lr {}", o.min_lr, o.lr));
  problems.add_if(o.warmup_steps < 0, fmt::format("--warmup-steps {}: must be at least 0", o.warmup_steps));
}

void check_data(const RunConfig& run, Problems& problems) {
  const DataConfig& data = run.data;
  problems.add_if(data.paths.empty(), "--data: names no text or token file to train on");
  problems.add_if(data.eval_every < 0, fmt::format("--eval-every {}: must be at least 0", data.eval_every));
  problems.add_if(data.eval_every > 0 && data.validation_fraction == 0,
                  fmt::format("--eval-every {}: needs data to validate on; give --validation-fraction, such as 0.05",
                              data.eval_every));
}

void check_types(const RunConfig& run, Problems& problems) {
  const auto usable = [](DType dtype) { return dtype == DType::float32 || dtype == DType::bfloat16; };
  problems.add_if(!usable(run.dtype), fmt::format("--dtype {}: use float32 or bfloat16", name_of(run.dtype)));
  problems.add_if(!usable(run.reduce_dtype),
                  fmt::format("--reduce-dtype {}: use float32 or bfloat16", name_of(run.reduce_dtype)));
  problems.add_if(run.reduce_dtype == DType::bfloat16 && run.dtype == DType::float32,
                  "--reduce-dtype bfloat16: would undo the precision of --dtype float32; use it with --dtype bfloat16");
}

void check_process(const RunConfig& run, Problems& problems) {
  problems.add_if(run.steps < 1, fmt::format("--steps {}: must be at least 1", run.steps));
  problems.add_if(run.threads_per_rank < 1,
                  fmt::format("--threads-per-rank {}: must be at least 1", run.threads_per_rank));
  check_interval("--deadline", run.deadline, {.open_below = true}, problems);
  problems.add_if(run.timeline && run.out.empty(), "--timeline: writes into the folder of --out; give --out DIR");
}

}  // namespace

namespace {

void check_saving(const RunConfig& run, Problems& problems) {
  const auto natural = [&](const char* flag, int value) {
    problems.add_if(value < 0, fmt::format("--{} {}: must not be negative", flag, value));
  };
  natural("checkpoint-every", run.checkpoint_every);
  natural("keep", run.keep);
  problems.add_if(
      run.checkpoint_every > 0 && run.out.empty(),
      fmt::format("--checkpoint-every {}: needs --out, the folder that holds the checkpoints", run.checkpoint_every));
  problems.add_if(!(run.max_seconds >= 0),
                  fmt::format("--max-seconds {}: must not be negative", exact(run.max_seconds)));
}

}  // namespace

void check_settings(const RunConfig& run, Problems& problems) {
  check_world(run, problems);
  check_schedule(run, problems);
  check_sequence(run, problems);
  check_batch(run, problems);
  check_optimizer(run, problems);
  check_data(run, problems);
  check_types(run, problems);
  check_process(run, problems);
  check_saving(run, problems);
}

void check_split(const ModelConfig& model, const RunConfig& run, Problems& problems) {
  Problems elsewhere;  // the schedule's own faults are reported by check_settings
  check_tensor_degree(model, run, problems);
  check_experts(model, run, problems);
  check_context(model, run, problems);
  check_stages(model, run, check_schedule(run, elsewhere), problems);
}

void check_layout(const ModelConfig& model, const RunConfig& run, Problems& problems) {
  check_split(model, run, problems);
  check_schedule(run, problems);
  check_positions(model, run, problems);
  check_sequence(run, problems);
  check_batch(run, problems);
  check_types(run, problems);
}

void check_run(const ModelConfig& model, const RunConfig& run, Problems& problems) {
  check_split(model, run, problems);
  check_positions(model, run, problems);
  check_settings(run, problems);
}

std::vector<std::string> doubts_about_run(const ModelConfig& model, const RunConfig& run) {
  std::vector<std::string> doubts;
  if (run.seq_len > model.positions && !learns_positions(model)) {
    doubts.push_back(fmt::format("--seq-len {}: the model's configuration was made for at most {} positions",
                                 run.seq_len, model.positions));
  }
  if (run.optimizer.warmup_steps >= run.steps) {
    doubts.push_back(fmt::format("--warmup-steps {}: the run ends at step {}, before the learning rate reaches --lr",
                                 run.optimizer.warmup_steps, run.steps));
  }
  if (run.optimizer.lr_schedule == LrSchedule::constant && run.optimizer.min_lr > 0) {
    doubts.push_back(fmt::format("--min-lr {}: has no effect with --lr-schedule constant", run.optimizer.min_lr));
  }
  if (run.data.validation_fraction > 0 && run.data.eval_every == 0) {
    doubts.push_back(
        fmt::format("--validation-fraction {}: keeps data from training, but without --eval-every no "
                    "validation loss is computed",
                    run.data.validation_fraction));
  }
  return doubts;
}

std::string alternatives(const std::vector<std::int64_t>& values) {
  constexpr std::size_t kShown = 12;
  std::vector<std::string> words;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool left_out = values.size() > kShown && i >= kShown - 2 && i + 2 < values.size();
    if (!left_out) words.push_back(std::to_string(values[i]));
    if (left_out && i == kShown - 2) words.push_back("…");
  }
  if (words.size() < 2) return join(words);
  const std::string last = words.back();
  words.pop_back();
  return join(words) + " or " + last;
}

}  // namespace cuboid
