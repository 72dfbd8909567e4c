#include "harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cuboid/formats/hf_config.h"
#include "cuboid/train/optimizer.h"
#include "cuboid/train/weights.h"

#include "gpu.h"

namespace cuboid::golden {
namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

ExpectedBatch expected_batch(const nlohmann::json& json) {
  ExpectedBatch batch;
  batch.loss = json.at("loss");
  batch.grad_norm = json.at("global_grad_norm");
  batch.gradients = json.at("grad_norms").get<Norms>();
  batch.sums = json.at("loss_sum_per_sequence").get<std::vector<double>>();
  if (json.contains("logits_seq0_last_position_first8")) json["logits_seq0_last_position_first8"].get_to(batch.logits);
  if (json.contains("inputs")) json["inputs"].get_to(batch.inputs);
  if (json.contains("targets")) json["targets"].get_to(batch.targets);
  return batch;
}

void set_weights(const RunConfig& run, const ModelConfig& model, Replica& replica) {
  if (run.weights.empty()) return replica.parameters().initialize(run.seed);
  load_weights(WeightFolder::open(run.weights), model, replica.parameters());
}

// Sums what each rank counts of its own over the ranks that own different elements.
void add_over_owners(Replica& replica, const Tensor& sum) {
  all_reduce_in_place(replica.groups().axis(Axis::tp), sum);
  all_reduce_in_place(replica.groups().axis(Axis::pp), sum);
  all_reduce_in_place(replica.parameters().copies(), sum);
}

// Norms of all Hugging Face tensors of the model; collective.
Norms collect_norms(Replica& replica, const ModelConfig& model, bool of_values) {
  const auto tensors = model_of(model).hugging_face_tensors(model);
  const auto squares = local_hugging_face_squares(tensors, replica.parameters(), of_values);
  const Tensor sum = replica.device().host().empty({static_cast<std::int64_t>(squares.size())}, DType::float64);
  std::copy(squares.begin(), squares.end(), sum.data<double>());
  add_over_owners(replica, sum);
  Norms norms;
  for (std::size_t i = 0; i < tensors.size(); ++i) norms[tensors[i].hf_name] = std::sqrt(sum.data<double>()[i]);
  return norms;
}

// Writes this rank's own elements into the global tensors. Ranks write to different places.
void gather(Replica& replica, std::map<std::string, std::vector<float>>& weights) {
  const ParameterStore& store = replica.parameters();
  for (const Parameter* p : store.all()) {
    if (!p->info->tied_with.empty() || !store.counts(*p)) continue;
    std::vector<float>& global = weights.at(p->info->name);
    const OwnedStretch own = store.owned(*p);
    const Tensor master = store.device().to_host(store.bucket_of(*p).master);
    const float* values = master.data<float>() + own.at - own.begin;  // by index in the shard
    for (const Run& run : shard_runs(*p->info, store.tp_rank(), store.tp_size())) {
      if (!counts_piece(*p->info, run.piece, store.tp_rank(), store.tp_size())) continue;
      const std::int64_t begin = std::max(run.local, own.begin);
      const std::int64_t end = std::min(run.local + run.count, own.begin + own.count);
      if (begin < end) std::copy(values + begin, values + end, global.begin() + run.global + begin - run.local);
    }
  }
}

}  // namespace

std::string name_of(const Layout& layout) {
  std::string name = fmt::format("{}_tp{}_pp{}_dp{}{}_{}_mb{}", layout.model, layout.tp, layout.pp, layout.dp,
                                 layout.sequence_parallel ? "_sp" : "", layout.schedule, layout.micro_batch);
  if (!layout.stage_layers.empty()) name += fmt::format("_layers_{}", fmt::join(layout.stage_layers, "_"));
  if (layout.ep > 1) name += fmt::format("_ep{}", layout.ep);
  if (layout.cp > 1) name += fmt::format("_cp{}", layout.cp);
  if (layout.zero > 0) name += fmt::format("_zero{}", layout.zero);
  if (layout.order != Grid::kDefaultOrder) name += "_order_" + layout.order;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

void PrintTo(const Layout& layout, std::ostream* out) {
  *out << name_of(layout);
}

std::string oracle_folder(const std::string& model) {
  // Programs that were moved to another machine have their data elsewhere.
  const char* const moved = std::getenv("CUBOID_TEST_DATA");
  return std::string(moved != nullptr ? moved : CUBOID_TEST_DATA) + "/oracle/" + model;
}

ModelConfig oracle_model(const std::string& model) {
  return load_model(oracle_folder(model));
}

RunConfig oracle_run(const Layout& layout) {
  RunConfig run;
  run.model = run.weights = oracle_folder(layout.model);
  run.data.paths = {oracle_folder(layout.model) + "/tokens.bin"};
  run.grid = Grid({{layout.tp, layout.cp, layout.ep, layout.dp, layout.pp}}, layout.order);
  run.schedule = layout.schedule;
  run.stage_layers = layout.stage_layers;
  run.sequence_parallel = layout.sequence_parallel;
  run.micro_batch = layout.micro_batch;
  run.zero = layout.zero;
  run.global_batch = 8;
  run.seq_len = 32;
  run.steps = 20;
  run.optimizer = {.kind = OptimizerKind::adamw,
                   .lr = 1e-3,
                   .lr_schedule = LrSchedule::constant,
                   .weight_decay = 0.1,
                   .beta1 = 0.9,
                   .beta2 = 0.95,
                   .eps = 1e-8,
                   .clip_grad = 1.0};
  run.deadline = 60;
  return run;
}

Expected read_expected(const std::string& model) {
  const auto json = read_json(oracle_folder(model) + "/expected.json");
  Expected expected;
  expected.first = expected_batch(json.at("first_batch"));
  expected.masked = expected_batch(json.at("masked_batch"));
  if (json.contains("long_batch")) expected.longest = expected_batch(json["long_batch"]);
  expected.losses = json.at("training").at("loss").get<std::vector<double>>();
  expected.grad_norms = json.at("training").at("grad_norm").get<std::vector<double>>();
  expected.final_weights = json.at("training").at("param_norms_after").get<Norms>();
  return expected;
}

Norms read_norms(const std::string& path) {
  return read_json(path).get<Norms>();
}

std::vector<std::uint16_t> read_tokens(const std::string& model) {
  std::ifstream file(oracle_folder(model) + "/tokens.bin", std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::uint16_t> tokens(bytes.size() / 2);
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * 2);
  return tokens;
}

Trace trace(const RunConfig& run, const ModelConfig& model) {
  Trace made;
  TrainEvents events;
  events.on_step = [&](const StepMetrics& m) {
    made.losses.push_back(m.loss);
    made.grad_norms.push_back(m.grad_norm);
  };
  made.result = train(run, model, events, nullptr, {.gpus = gpus_of(run.grid.world())});
  return made;
}

StepReader stream_reader(const std::string& model, std::int64_t seq_len, int global_batch, int first_step) {
  const auto tokens = std::make_shared<const std::vector<std::uint16_t>>(read_tokens(model));
  return [=](int step, std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
    const std::int64_t begin = (std::int64_t{first_step + step} * global_batch + i) * seq_len;
    std::copy_n(tokens->begin() + begin, seq_len, inputs.begin());
    std::copy_n(tokens->begin() + begin + 1, seq_len, targets.begin());
    return true;
  };
}

StepReader batch_reader(const ExpectedBatch& batch) {
  return [&batch](int, std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
    std::copy(batch.inputs[index(i)].begin(), batch.inputs[index(i)].end(), inputs.begin());
    std::copy(batch.targets[index(i)].begin(), batch.targets[index(i)].end(), targets.begin());
    return true;
  };
}

void expect_near_weights(const Learned& other, const Learned& one, const Learned& start, int steps,
                         const std::string& of) {
  for (const auto& [name, expected] : one.weights) {
    double moved = 0;
    double weight = 0;
    double apart = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      moved += std::pow(double{expected[i]} - start.weights.at(name)[i], 2);
      weight += std::pow(double{expected[i]}, 2);
      apart += std::pow(double{other.weights.at(name)[i]} - expected[i], 2);
    }
    // Rounding of every stored step, and gradients that differ by what float32 sums of some thousand terms may.
    const double tolerance = steps * 1.2e-7 * std::sqrt(weight) + 2e-5 * std::sqrt(moved);
    EXPECT_LE(std::sqrt(apart), tolerance) << of << ": " << name;
    EXPECT_GT(std::sqrt(moved), 10 * tolerance) << name << " hardly moved: the test would see nothing";
  }
}

Learned learn(const RunConfig& run, const ModelConfig& model, const StepReader& read) {
  const PipelineLayout layout = plan_pipeline(run, model);
  Learned learned;
  const ParameterTable table = parameters_of(model);
  for (const auto& info : table.rows()) {
    if (info.tied_with.empty()) learned.weights[info.name].resize(index(info.shape.elements()));
  }
  run_ranks(run.grid.world(),
            [&](RankContext& context) {
              Replica replica(context, run, model, layout);
              Optimizer optimizer(context.device, run.optimizer, replica.parameters());
              set_weights(run, model, replica);
              Learned mine;
              for (int s = 0; s < run.steps; ++s) {
                const auto sample = [&](std::int64_t i, std::span<std::int32_t> inputs,
                                        std::span<std::int32_t> targets) { return read(s, i, inputs, targets); };
                const BatchLoss loss =
                    replica.train_batch(sample, {run.seed, s, run.dropout}, std::int64_t{s} * run.global_batch, [&] {
                      if (s == 0) mine.first_gradients = collect_norms(replica, model, false);
                      mine.grad_norms.push_back(gradient_norm(replica.device(), replica.parameters(),
                                                              replica.groups().axis(Axis::tp),
                                                              replica.groups().axis(Axis::pp)));
                      optimizer.step(learning_rate(run.optimizer, s, run.steps),
                                     clipping_factor(run.optimizer.clip_grad, mine.grad_norms.back()));
                    });
                mine.losses.push_back(loss.mean());
              }
              mine.weight_norms = collect_norms(replica, model, true);
              const Tensor hash = context.device.host().empty({1}, DType::int64);
              *hash.data<std::int64_t>() = static_cast<std::int64_t>(local_weights_hash(replica.parameters()));
              add_over_owners(replica, hash);
              gather(replica, learned.weights);
              if (context.rank != 0) return;
              learned.losses = mine.losses;
              learned.grad_norms = mine.grad_norms;
              learned.first_gradients = mine.first_gradients;
              learned.weight_norms = mine.weight_norms;
              learned.weights_hash = fmt::format("{:016x}", static_cast<std::uint64_t>(*hash.data<std::int64_t>()));
            },
            {.deadline = run.deadline, .gpus = gpus_of(run.grid.world())});
  return learned;
}

std::vector<float> logits_of_first_sequence(const RunConfig& run, const ModelConfig& model, const StepReader& read) {
  const PipelineLayout layout = plan_pipeline(run, model);
  std::vector<float> logits;
  run_ranks(
      run.grid.world(),
      [&](RankContext& context) {
        Replica replica(context, run, model, layout);
        set_weights(run, model, replica);
        replica.keep_logits(true);
        // The logits kept are those of the last micro-batch: let data rank 0's begin with sequence 0.
        const std::int64_t shift = std::int64_t{run.micro_batches() - 1} * run.micro_batch;
        replica.evaluate_batch([&](std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) {
          return read(0, (i - shift + run.global_batch) % run.global_batch, inputs, targets);
        });
        const Coordinate at = replica.groups().at();
        if (at[Axis::pp] + 1 != run.grid.degree(Axis::pp) || replica.groups().data().rank() != 0) return;
        const Tensor all = replica.logits(0);  // (T,V); collective over tp and cp
        if (at[Axis::tp] == 0 && at[Axis::cp] == 0)
          logits.assign(all.data<float>(), all.data<float>() + all.elements());
      },
      {.deadline = run.deadline, .gpus = gpus_of(run.grid.world())});
  return logits;
}

}  // namespace cuboid::golden
