// Pipeline schedules: generating and proving large ones, finding one for given costs, timing, and what the executor
// itself takes for an action.
#include <benchmark/benchmark.h>

#include "cuboid/comm/ranks.h"
#include "cuboid/parallel/pipeline/auto_schedule.h"
#include "cuboid/parallel/pipeline/executor.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/parallel/pipeline/passes.h"

namespace cuboid {
namespace {

const ScheduleRequest kLarge = {.name = "interleaved-1f1b", .ranks = 64, .micro_batches = 1024, .virtual_stages = 4};

void count_actions(benchmark::State& state, const Schedule& schedule) {
  double actions = 0;
  for (const auto& row : schedule.rows) actions += static_cast<double>(row.size());
  state.counters["actions"] = actions;
}

void BM_GenerateAndVerify(benchmark::State& state) {
  for (auto _ : state) {
    const Schedule schedule = make_schedule(kLarge);
    benchmark::DoNotOptimize(verify(schedule).size());
  }
  count_actions(state, make_schedule(kLarge));
}
BENCHMARK(BM_GenerateAndVerify)->Unit(benchmark::kMillisecond)->MinTime(0.1);

// With transfers, reductions and the step: what a run would execute.
void BM_GenerateLowerAndVerify(benchmark::State& state) {
  const auto lowered = [&] {
    return add_step(add_reduction(add_transfers(make_schedule(kLarge), static_cast<SendMode>(state.range(0)))));
  };
  VerifyOptions options;
  options.sends = static_cast<SendMode>(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(verify(lowered(), options).size());
  count_actions(state, lowered());
}
BENCHMARK(BM_GenerateLowerAndVerify)
    ->ArgName("buffered")
    ->Arg(static_cast<int>(SendMode::rendezvous))
    ->Arg(static_cast<int>(SendMode::buffered))
    ->Unit(benchmark::kMillisecond)
    ->MinTime(0.1);

void BM_Simulate(benchmark::State& state) {
  const Schedule schedule = make_schedule(kLarge);
  for (auto _ : state) benchmark::DoNotOptimize(simulate(schedule).makespan);
  count_actions(state, schedule);
}
BENCHMARK(BM_Simulate)->Unit(benchmark::kMillisecond)->MinTime(0.1);

// Unequal stages: a heavy head and a slow stage in the middle.
void BM_FindSchedule(benchmark::State& state) {
  AutoRequest request;
  request.ranks = static_cast<int>(state.range(0));
  request.micro_batches = static_cast<int>(state.range(1));
  request.costs.stages.assign(static_cast<std::size_t>(request.ranks), {1, 2, 1, 1});
  request.costs.stages.back() = {1.2, 3.1, 1.7, 1.7};
  request.costs.stages[static_cast<std::size_t>(request.ranks) / 2].forward = 1.5;
  request.costs.transfer = 0.05;
  AutoSchedule found;
  for (auto _ : state) found = find_schedule(request);
  state.counters["makespan/bound"] = found.makespan / found.lower_bound;
  state.counters["makespan/named"] = found.makespan / found.best_named_makespan;
}
BENCHMARK(BM_FindSchedule)->Args({4, 16})->Args({16, 64})->Unit(benchmark::kMillisecond)->Iterations(1);

// A model without work: what is left is the executor, and the messages.
class EmptyStage final : public Stage {
 public:
  EmptyStage(const Device& device, bool first, bool last)
      : message_(device.zeros({1}, DType::float32)), first_(first), last_(last) {}
  Tensor forward(int, Tensor) override { return last_ ? Tensor() : message_; }
  Tensor backward(int, Tensor) override { return first_ ? Tensor() : message_; }
  Tensor input_gradient(int, Tensor) override { return first_ ? Tensor() : message_; }
  void weight_gradient(int) override {}
  void reduce_gradient() override {}
  void unshard() override {}
  void reshard() override {}

 private:
  Tensor message_;
  bool first_;
  bool last_;
};

void run_row(RankContext& context, const Schedule& schedule, int repetitions) {
  const std::vector<int> rank_of_stage = schedule.rank_of_stage();
  StageChannels channels(*context.world, rank_of_stage);
  std::map<int, std::unique_ptr<EmptyStage>> stages;
  std::map<int, Stage*> pointers;
  for (int s = 0; s < schedule.stages; ++s) {
    if (rank_of_stage[static_cast<std::size_t>(s)] != context.rank) continue;
    stages[s] = std::make_unique<EmptyStage>(context.device, s == 0, s + 1 == schedule.stages);
    pointers[s] = stages[s].get();
  }
  Executor executor(schedule, context.rank, pointers, &channels, {1}, DType::float32);
  for (int i = 0; i < repetitions; ++i) executor.run([] {});
}

// Time an action of one rank's row, transfers counted as actions; ranks: 1 measures the executor alone, 2 with messages
// between threads.
void BM_ExecutorAction(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const Schedule schedule = add_step(add_reduction(
      add_transfers(make_schedule({.name = "zb-h1", .ranks = ranks, .micro_batches = 512}), SendMode::buffered)));
  constexpr int kRepetitions = 4;
  for (auto _ : state) {
    run_ranks(ranks, [&](RankContext& context) { run_row(context, schedule, kRepetitions); });
  }
  const auto actions = static_cast<double>(schedule.rows.front().size()) * kRepetitions;
  state.counters["action"] = benchmark::Counter(actions * static_cast<double>(state.iterations()),
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_ExecutorAction)->ArgName("ranks")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cuboid

BENCHMARK_MAIN();
