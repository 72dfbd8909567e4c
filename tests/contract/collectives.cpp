// What collectives compute: exact answers for every operation, type, size, number of ranks and aliasing.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>

#include "backend.h"

namespace cuboid::contract {
namespace {

class Collectives : public OnBackend {};
CUBOID_ON_BACKENDS(Collectives, 1);

constexpr int kUnset = 77;             // no input or result has it
constexpr std::int64_t kSmall = 1023;  // up to here everything is tried; above, what differs for large messages

// Sizes of the whole message: none, one, odd, and a little over 1 MiB.
template <typename T>
std::vector<std::int64_t> counts() {
  return {0, 1, 7, 1023, (1 << 20) / static_cast<std::int64_t>(sizeof(T)) + 3};
}

// The same for one of `size` parts.
template <typename T>
std::vector<std::int64_t> part_counts(int size) {
  return {0, 1, 7, 1023, (1 << 20) / static_cast<std::int64_t>(sizeof(T)) / size + 3};
}

template <typename T>
Tensor make(const Device& device, std::int64_t count) {
  Tensor tensor = device.empty({count}, dtype_of<T>);
  fill<T>(tensor, [](std::int64_t) { return kUnset; });
  return tensor;
}

template <typename T>
void check_all_reduce(RankContext& self, std::int64_t count, ReduceOp op, bool in_place) {
  const Tensor in = make<T>(self.device, count);
  const auto own = [&](std::int64_t i) { return value(self.rank, i); };
  fill<T>(in, own);
  const Tensor out = in_place ? in : make<T>(self.device, count);
  self.world->all_reduce(in, out, op).wait();
  expect_elements<T>(out, Reduced(self.size, op), "all_reduce");
  if (!in_place) expect_elements<T>(in, own, "input of all_reduce");
}

TEST_P(Collectives, AllReduce) {
  run_on_all_sizes([](RankContext& self) {
    for_each_type([&]<typename T>() {
      for (std::int64_t count : counts<T>()) {
        for (bool in_place : {false, true}) {
          check_all_reduce<T>(self, count, ReduceOp::sum, in_place);
          if (count <= kSmall) check_all_reduce<T>(self, count, ReduceOp::max, in_place);
        }
      }
    });
  });
}

TEST_P(Collectives, AllReduceInPlaceOnSomeMembersOnly) {
  run_on_all_sizes([](RankContext& self) { check_all_reduce<float>(self, 70001, ReduceOp::sum, self.rank % 2 == 0); });
}

template <typename T>
void check_reduce_scatter(RankContext& self, std::int64_t part, ReduceOp op, bool in_place) {
  const Tensor in = make<T>(self.device, part * self.size);
  fill<T>(in, [&](std::int64_t i) { return value(self.rank, i); });
  const Tensor out = in_place ? in.narrow(self.rank * part, part) : make<T>(self.device, part);
  self.world->reduce_scatter(in, out, op).wait();
  const Reduced whole(self.size, op);
  const auto expected = [&](std::int64_t i) { return whole(self.rank * part + i); };
  expect_elements<T>(out, expected, "reduce_scatter");
  // The rest of the input is nobody's to change.
  const auto rest = [&](std::int64_t i) {
    return in_place && i / std::max<std::int64_t>(part, 1) == self.rank ? whole(i) : value(self.rank, i);
  };
  expect_elements<T>(in, rest, "input of reduce_scatter");
}

TEST_P(Collectives, ReduceScatter) {
  run_on_all_sizes([](RankContext& self) {
    for_each_type([&]<typename T>() {
      for (std::int64_t part : part_counts<T>(self.size)) {
        for (bool in_place : {false, true}) {
          check_reduce_scatter<T>(self, part, ReduceOp::sum, in_place);
          if (part <= kSmall) check_reduce_scatter<T>(self, part, ReduceOp::max, in_place);
        }
      }
    });
  });
}

template <typename T>
void check_all_gather(RankContext& self, std::int64_t part, bool in_place) {
  const Tensor out = make<T>(self.device, part * self.size);
  const Tensor in = in_place ? out.narrow(self.rank * part, part) : make<T>(self.device, part);
  const auto own = [&](std::int64_t i) { return value(self.rank, i); };
  fill<T>(in, own);
  self.world->all_gather(in, out).wait();
  expect_elements<T>(
      out, [&](std::int64_t i) { return value(static_cast<int>(i / part), i % part); }, "all_gather");
  if (!in_place) expect_elements<T>(in, own, "input of all_gather");
}

TEST_P(Collectives, AllGather) {
  run_on_all_sizes([](RankContext& self) {
    for_each_type([&]<typename T>() {
      for (std::int64_t part : part_counts<T>(self.size)) {
        for (bool in_place : {false, true}) check_all_gather<T>(self, part, in_place);
      }
    });
  });
}

template <typename T>
void check_all_to_all(RankContext& self, std::int64_t part) {
  // What a member sends depends on sender, receiver and element.
  const auto sent = [&](int from, int to, std::int64_t i) { return value(from, 3 * to + i); };
  const Tensor in = make<T>(self.device, part * self.size);
  const Tensor out = make<T>(self.device, part * self.size);
  const auto own = [&](std::int64_t i) { return sent(self.rank, static_cast<int>(i / part), i % part); };
  fill<T>(in, own);
  self.world->all_to_all(in, out).wait();
  expect_elements<T>(
      out, [&](std::int64_t i) { return sent(static_cast<int>(i / part), self.rank, i % part); }, "all_to_all");
  expect_elements<T>(in, own, "input of all_to_all");
}

TEST_P(Collectives, AllToAll) {
  run_on_all_sizes([](RankContext& self) {
    for_each_type([&]<typename T>() {
      for (std::int64_t part : part_counts<T>(self.size)) check_all_to_all<T>(self, part);
    });
  });
}

// Elements from one member to another: none, a few, or many, and never the same number back.
std::int64_t part_between(int from, int to, std::int64_t unit) {
  return (5 * from + 3 * to) % 7 * unit + (from < to ? 1 : 0);
}

template <typename T>
void check_all_to_all_v(RankContext& self, std::int64_t unit) {
  const auto sent = [](int from, int to, std::int64_t i) { return value(from, 3 * to + i); };
  std::vector<std::int64_t> sends, receives;
  for (int other = 0; other < self.size; ++other) {
    sends.push_back(part_between(self.rank, other, unit));
    receives.push_back(part_between(other, self.rank, unit));
  }
  std::vector<int> inputs, expected;
  for (int other = 0; other < self.size; ++other) {
    const auto at = static_cast<std::size_t>(other);
    for (std::int64_t i = 0; i < sends[at]; ++i) inputs.push_back(sent(self.rank, other, i));
    for (std::int64_t i = 0; i < receives[at]; ++i) expected.push_back(sent(other, self.rank, i));
  }
  const Tensor in = make<T>(self.device, static_cast<std::int64_t>(inputs.size()));
  const Tensor out = make<T>(self.device, static_cast<std::int64_t>(expected.size()));
  const auto own = [&](std::int64_t i) { return inputs[static_cast<std::size_t>(i)]; };
  fill<T>(in, own);
  Work first = self.world->all_to_all_v(in, sends, out, receives);
  // A second one in flight: parts of the two must not be taken for each other.
  const Tensor again = make<T>(self.device, out.elements());
  self.world->all_to_all_v(in, sends, again, receives).wait();
  first.wait();
  for (const Tensor& got : {out, again}) {
    expect_elements<T>(
        got, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, "all_to_all_v");
  }
  expect_elements<T>(in, own, "input of all_to_all_v");
}

TEST_P(Collectives, AllToAllOfUnequalParts) {
  run_on_all_sizes([](RankContext& self) {
    for_each_type([&]<typename T>() {
      for (const std::int64_t unit : {0, 1, 1023, 9001}) check_all_to_all_v<T>(self, unit);
    });
  });
}

TEST_P(Collectives, BroadcastFromEveryRoot) {
  run_on_all_sizes([](RankContext& self) {
    for_each_type([&]<typename T>() {
      for (std::int64_t count : counts<T>()) {
        for (int root = 0; root<self.size; root += count> 2000 ? 3 : 1) {
          const Tensor tensor = make<T>(self.device, count);
          fill<T>(tensor, [&](std::int64_t i) { return value(self.rank, i); });
          self.world->broadcast(tensor, root).wait();
          expect_elements<T>(
              tensor, [&](std::int64_t i) { return value(root, i); }, "broadcast");
        }
      }
    });
  });
}

TEST_P(Collectives, BarrierEndsAfterTheLastHasCome) {
  run_on_all_sizes([](RankContext& self) {
    const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
    std::this_thread::sleep_for(std::chrono::milliseconds(3 * ((self.rank * 5) % 7)));
    const Tensor last = self.device.host().zeros({1}, DType::int64);
    const std::int64_t came = now();
    self.world->barrier();
    const std::int64_t left = now();
    last.data<std::int64_t>()[0] = came;
    all_reduce_in_place(*self.world, last, ReduceOp::max);
    EXPECT_GE(left, last.data<std::int64_t>()[0]);
  });
}

// Numbers of very different sizes: any other order of summation gives other bits.
float uneven(int rank, std::int64_t i) {
  const auto mixed = static_cast<std::uint32_t>(i * 2654435761 + rank * 40503) % 9973;
  return std::ldexp(static_cast<float>(mixed) - 4986.5F, static_cast<int>(mixed % 23) - 11);
}

TEST_P(Collectives, SumsAddInAscendingRankOrder) {
  constexpr std::int64_t kCount = 41011;
  run_on_all_sizes([](RankContext& self) {
    const Tensor whole = self.device.empty({kCount}, DType::float32);
    const Tensor half = self.device.empty({kCount}, DType::bfloat16);
    std::vector<float> own;
    std::vector<BFloat16> own_half;
    for (std::int64_t i = 0; i < kCount; ++i) {
      own.push_back(uneven(self.rank, i));
      own_half.emplace_back(uneven(self.rank, i));
    }
    set_elements(whole, own);
    set_elements(half, own_half);
    all_reduce_in_place(*self.world, whole);
    all_reduce_in_place(*self.world, half);
    const auto sums = elements<float>(whole);
    const auto half_sums = elements<BFloat16>(half);
    std::int64_t wrong = 0;
    std::int64_t wrong_half = 0;
    std::int64_t order_matters = 0;
    for (std::int64_t i = 0; i < kCount; ++i) {
      float sum = uneven(0, i);
      float sum_half = static_cast<float>(BFloat16(uneven(0, i)));
      for (int r = 1; r < self.size; ++r) {
        sum += uneven(r, i);
        sum_half += static_cast<float>(BFloat16(uneven(r, i)));
      }
      float reversed = uneven(self.size - 1, i);
      for (int r = self.size - 2; r >= 0; --r) reversed += uneven(r, i);
      order_matters += reversed != sum;
      wrong += std::bit_cast<std::uint32_t>(sums[static_cast<std::size_t>(i)]) != std::bit_cast<std::uint32_t>(sum);
      wrong_half += half_sums[static_cast<std::size_t>(i)].bits != BFloat16(sum_half).bits;  // rounded once
    }
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(wrong_half, 0);
    if (self.size > 2) {
      EXPECT_GT(order_matters, 1000) << "the inputs cannot tell orders apart";
    }
  });
}

TEST_P(Collectives, Bfloat16KeepsSmallTermsUntilTheEnd) {
  if (backend().largest() < 3) GTEST_SKIP() << "three terms need three ranks";
  run_on_all_sizes(
      [](RankContext& self) {
        // 256 + 1 is 256 in bfloat16; 256 + 1 + 1 summed in float is 258, which bfloat16 has.
        const Tensor x = self.device.empty({19}, DType::bfloat16);
        fill<BFloat16>(x, [&](std::int64_t) { return self.rank == 0 ? 256 : self.rank <= 2 ? 1 : 0; });
        all_reduce_in_place(*self.world, x);
        expect_elements<BFloat16>(
            x, [](std::int64_t) { return 258; }, "sum");
      },
      3);
}

TEST_P(Collectives, ExtremeValues) {
  run_on_all_sizes([](RankContext& self) {
    const int odd_one = self.size / 2;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    const Tensor x = self.device.empty({5}, DType::float32);
    const float last = self.rank == odd_one ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
    set_elements<float>(x, {0, -kInfinity, 0, last, 0});
    all_reduce_in_place(*self.world, x, ReduceOp::max);
    EXPECT_TRUE(std::isnan(elements<float>(x)[3])) << "a maximum must not hide a NaN";
    EXPECT_EQ(elements<float>(x)[1], -kInfinity);
    const Tensor n = self.device.empty({2}, DType::int64);
    set_elements<std::int64_t>(n, {self.rank == odd_one ? kMost : 0, kMost});
    all_reduce_in_place(*self.world, n);
    EXPECT_EQ(elements<std::int64_t>(n)[0], kMost) << "more than a double holds";
    EXPECT_EQ(elements<std::int64_t>(n)[1], static_cast<std::int64_t>(std::uint64_t(self.size) * INT64_MAX)) << "wraps";
  });
}

TEST_P(Collectives, AnyShapeAndAnyOffset) {
  run_on_all_sizes([](RankContext& self) {
    const Tensor base = make<float>(self.device, 3 * 5 * 7 + 11);
    const Tensor view = base.narrow(9, 3 * 5 * 7).reshape({3, 5, 7});
    fill<float>(view, [&](std::int64_t i) { return value(self.rank, i); });
    all_reduce_in_place(*self.world, view);
    const Reduced sum(self.size, ReduceOp::sum);
    expect_elements<float>(
        base, [&](std::int64_t i) { return i >= 9 && i < 9 + 105 ? sum(i - 9) : kUnset; }, "view and its surroundings");
  });
}

TEST_P(Collectives, WaitReleasesTheBuffers) {
  run_on_all_sizes([](RankContext& self) {
    for (std::int64_t count : {5, 60013}) {
      const Tensor in = make<float>(self.device, count);
      const Tensor out = make<float>(self.device, count * self.size);
      Work work = self.world->all_gather(in, out);
      work.wait();  // with the handle still there
      EXPECT_TRUE(in.unique() && out.unique()) << "or they could not be handed over or overwritten";
    }
  });
}

TEST_P(Collectives, ManyOutstandingWaitedInReverse) {
  run_on_all_sizes([](RankContext& self) {
    constexpr int kOperations = 150;
    std::vector<Tensor> tensors;
    std::vector<Work> works;
    for (int k = 0; k < kOperations; ++k) {
      // Now and then one that is shared out among the members.
      const Tensor x = make<std::int32_t>(self.device, k % 10 == 3 ? 50000 + k : k);
      fill<std::int32_t>(x, [&](std::int64_t i) { return value(self.rank, i + k); });
      works.push_back(k % 3 == 2 ? self.world->broadcast(x, k % self.size)
                                 : self.world->all_reduce(x, x, k % 3 == 0 ? ReduceOp::sum : ReduceOp::max));
      tensors.push_back(x);
    }
    for (int k = kOperations - 1; k >= 0; --k) {
      works[k].wait();
      works[k].wait();  // returns at once
      const Reduced reduced(self.size, k % 3 == 0 ? ReduceOp::sum : ReduceOp::max);
      expect_elements<std::int32_t>(
          tensors[k], [&](std::int64_t i) { return k % 3 == 2 ? value(k % self.size, i + k) : reduced(i + k); },
          "operation " + std::to_string(k));
    }
  });
}

TEST_P(Collectives, MisuseIsRefusedByTheCaller) {
  run(1, [](RankContext& self) {
    const Tensor a = self.device.zeros({4}, DType::float32);
    const Tensor b = self.device.zeros({5}, DType::float32);
    const Tensor c = self.device.zeros({4}, DType::int32);
    Communicator& world = *self.world;
    EXPECT_THROW(world.all_reduce(a, b, ReduceOp::sum), std::logic_error);
    EXPECT_THROW(world.all_reduce(a, c, ReduceOp::sum), std::logic_error);
    EXPECT_THROW(world.all_reduce(b.narrow(0, 4), b.narrow(1, 4), ReduceOp::sum), std::logic_error);
    EXPECT_THROW(world.reduce_scatter(a, b, ReduceOp::sum), std::logic_error);
    EXPECT_THROW(world.all_gather(a, c), std::logic_error);
    EXPECT_THROW(world.all_to_all(a, a), std::logic_error);
    EXPECT_THROW(world.broadcast(a, 1), std::logic_error);
    EXPECT_THROW(world.broadcast(a, -1), std::logic_error);
    EXPECT_THROW(world.split(-2, 0, "x"), std::logic_error);
    EXPECT_THROW(world.send(a, 0, 3), std::logic_error) << "to itself";
    EXPECT_THROW(world.recv({4}, DType::float32, 0, 3), std::logic_error) << "from itself";
    EXPECT_THROW(world.recv({4}, DType::float32, 1, 3), std::logic_error) << "from nobody";
    world.barrier();  // none of these took a place in the order of operations
  });
}

}  // namespace
}  // namespace cuboid::contract
