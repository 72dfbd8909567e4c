// What the in-process communicator moves: collectives and messages between rank threads.
// busbw is nccl-tests' (doc/PERFORMANCE.md): the rate of the slowest link if the ring algorithm had moved the data,
// algbw · 2(n-1)/n for all_reduce and algbw · (n-1)/n for all_gather and reduce_scatter; decimal GB/s. algbw = S / time
// with S the bytes of the whole message.
#include <string>

#include <benchmark/benchmark.h>

#include "cuboid/comm/ranks.h"

namespace {

using namespace cuboid;

// Runs step(self) on n ranks as often as the benchmark wants. Rank 0 keeps its clock; since a collective ends together,
// that is everybody's.
void on_ranks(benchmark::State& state, int ranks, const std::function<std::function<void()>(RankContext&)>& prepare) {
  run_ranks(ranks, [&](RankContext& self) {
    const std::function<void()> step = prepare(self);
    for (int i = 0; i < 3; ++i) step();
    self.world->barrier();
    if (self.rank == 0) {
      for (auto _ : state) step();
    } else {
      for (benchmark::IterationCount i = 0; i < state.max_iterations; ++i) step();
    }
    self.world->barrier();
  });
}

void report(benchmark::State& state, std::int64_t bytes, double bus_factor) {
  state.SetLabel(std::to_string(bytes) + " B");
  state.counters["busbw_GB"] =
      benchmark::Counter(static_cast<double>(bytes) * static_cast<double>(state.iterations()) * bus_factor * 1e-9,
                         benchmark::Counter::kIsRate);
}

void all_reduce(benchmark::State& state, DType dtype) {
  const auto ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  on_ranks(state, ranks, [&](RankContext& self) {
    const Tensor x = self.device.zeros({bytes / static_cast<std::int64_t>(size_of(dtype))}, dtype);
    return [&self, x] { all_reduce_in_place(*self.world, x); };
  });
  report(state, bytes, 2.0 * (ranks - 1) / ranks);
}

void all_gather(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  on_ranks(state, ranks, [&](RankContext& self) {
    const Tensor whole = self.device.zeros({bytes / 4}, DType::float32);
    const Tensor own = whole.narrow(self.rank * bytes / 4 / ranks, bytes / 4 / ranks);
    return [&self, own, whole] { self.world->all_gather(own, whole).wait(); };
  });
  report(state, bytes, 1.0 * (ranks - 1) / ranks);
}

void reduce_scatter(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  on_ranks(state, ranks, [&](RankContext& self) {
    const Tensor whole = self.device.zeros({bytes / 4}, DType::float32);
    const Tensor own = self.device.empty({bytes / 4 / ranks}, DType::float32);
    return [&self, own, whole] { self.world->reduce_scatter(whole, own, ReduceOp::sum).wait(); };
  });
  report(state, bytes, 1.0 * (ranks - 1) / ranks);
}

void barrier(benchmark::State& state) {
  on_ranks(state, static_cast<int>(state.range(0)),
           [](RankContext& self) { return [&self] { self.world->barrier(); }; });
}

// One buffer goes back and forth between two ranks, owned by the one that has it: time of one way.
void message(benchmark::State& state) {
  const std::int64_t bytes = state.range(0);
  on_ranks(state, 2, [&](RankContext& self) {
    auto x = std::make_shared<Tensor>(self.device.zeros({bytes / 4}, DType::float32));
    return [&self, x, bytes] {
      const Shape shape({bytes / 4});
      if (self.rank == 0) {
        self.world->send(std::move(*x), 1, 0);
        *x = self.world->recv(shape, DType::float32, 1, 0).wait();
      } else {
        self.world->send(self.world->recv(shape, DType::float32, 0, 0).wait(), 0, 0);
      }
    };
  });
  state.SetLabel("there and back");
  state.counters["GB"] = benchmark::Counter(2e-9 * static_cast<double>(bytes) * static_cast<double>(state.iterations()),
                                            benchmark::Counter::kIsRate);
}

void sizes_on_2_and_8_ranks(benchmark::internal::Benchmark* b) {
  for (std::int64_t ranks : {2, 8}) {
    for (std::int64_t bytes = 4 << 10; bytes <= 64 << 20; bytes *= 4) b->Args({ranks, bytes});
  }
}

BENCHMARK_CAPTURE(all_reduce, float32, DType::float32)->Apply(sizes_on_2_and_8_ranks)->UseRealTime();
BENCHMARK_CAPTURE(all_reduce, bfloat16, DType::bfloat16)->Args({2, 4 << 20})->Args({8, 4 << 20})->UseRealTime();
BENCHMARK(all_gather)->Args({2, 4 << 20})->Args({8, 4 << 20})->UseRealTime();
BENCHMARK(reduce_scatter)->Args({2, 4 << 20})->Args({8, 4 << 20})->UseRealTime();
BENCHMARK(barrier)->Arg(2)->Arg(8)->UseRealTime();
BENCHMARK(message)->Arg(4)->Arg(1 << 20)->Arg(16 << 20)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
