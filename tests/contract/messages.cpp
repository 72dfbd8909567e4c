// Messages between two members, and communicators made from others.
#include <chrono>
#include <random>
#include <thread>

#include <gmock/gmock.h>

#include "backend.h"

namespace cuboid::contract {
namespace {

class Messages : public OnBackend {};
CUBOID_ON_BACKENDS(Messages, 2);
class Split : public OnBackend {};
CUBOID_ON_BACKENDS(Split, 1);

template <typename T>
Tensor made(const Device& device, Shape shape, int rank, std::int64_t shift) {
  Tensor tensor = device.empty(std::move(shape), dtype_of<T>);
  fill<T>(tensor, [&](std::int64_t i) { return value(rank, i + shift); });
  return tensor;
}

template <typename T>
void expect_made(const Tensor& tensor, int rank, std::int64_t shift) {
  expect_elements<T>(
      tensor, [&](std::int64_t i) { return value(rank, i + shift); }, "message");
}

TEST_P(Messages, AroundTheRing) {
  run_on_all_sizes(
      [](RankContext& self) {
        const int next = (self.rank + 1) % self.size;
        const int previous = (self.rank + self.size - 1) % self.size;
        for_each_type([&]<typename T>() {
          for (std::int64_t count : {0, 1, 7, 1023, 262147}) {
            self.world->send(made<T>(self.device, {count}, self.rank, 0), next, 4).wait();
            expect_made<T>(self.world->recv({count}, dtype_of<T>, previous, 4).wait(), previous, 0);
          }
          self.world->send(made<T>(self.device, {3, 5, 2}, self.rank, 1), next, 4).wait();
          const Tensor box = self.world->recv({3, 5, 2}, dtype_of<T>, previous, 4).wait();
          EXPECT_EQ(box.shape(), Shape({3, 5, 2}));
          expect_made<T>(box, previous, 1);
        });
      },
      2);
}

TEST_P(Messages, EveryPairEveryTagInAnyOrder) {
  run_on_all_sizes(
      [](RankContext& self) {
        constexpr int kTags = 3;
        constexpr int kEach = 4;
        for (int k = 0; k < kEach; ++k) {
          for (int to = 0; to < self.size; ++to) {
            for (int tag = 0; to != self.rank && tag < kTags; ++tag) {
              self.world->send(made<float>(self.device, {5}, self.rank, 100 * tag + 7 * k + to), to, tag).wait();
            }
          }
        }
        for (int from = self.size - 1; from >= 0; --from) {
          for (int tag = kTags - 1; from != self.rank && tag >= 0; --tag) {
            // Started in order, so the k-th receive gets the k-th message, whichever is waited for first.
            std::vector<Incoming> incoming;
            for (int k = 0; k < kEach; ++k) incoming.push_back(self.world->recv({5}, DType::float32, from, tag));
            for (int k = kEach - 1; k >= 0; --k) {
              expect_made<float>(incoming[k].wait(), from, 100 * tag + 7 * k + self.rank);
            }
          }
        }
      },
      2);
}

TEST_P(Messages, ReceiveMayStartBeforeTheSend) {
  run_on_all_sizes(
      [](RankContext& self) {
        if (self.rank == 0) {
          Incoming incoming = self.world->recv({9}, DType::int64, self.size - 1, -6);
          self.world->barrier();
          expect_made<std::int64_t>(incoming.wait(), self.size - 1, 2);
        } else {
          self.world->barrier();
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          if (self.rank == self.size - 1) self.world->send(made<std::int64_t>(self.device, {9}, self.rank, 2), 0, -6);
        }
      },
      2);
}

TEST_P(Messages, SendingNeverWaitsForTheReceiver) {
  run_on_all_sizes(
      [](RankContext& self) {
        constexpr int kMany = 500;
        if (self.rank == 1) {
          for (int k = 0; k < kMany; ++k) self.world->send(made<float>(self.device, {11}, 1, k), 0, 0).wait();
        }
        self.world->barrier();
        for (int k = 0; self.rank == 0 && k < kMany; ++k) {
          expect_made<float>(self.world->recv({11}, DType::float32, 1, 0).wait(), 1, k);
        }
      },
      2);
}

TEST_P(Messages, WhatTheSenderKeepsIsItsOwn) {
  run_on_all_sizes(
      [](RankContext& self) {
        if (self.rank == 0) {
          const Tensor kept = made<float>(self.device, {1031}, 0, 0);
          self.world->send(kept, 1, 0).wait();
          fill<float>(kept, [](std::int64_t) { return 55; });
          self.world->barrier();
          self.world->barrier();
          expect_elements<float>(
              kept, [](std::int64_t) { return 55; }, "the sender's");
        } else {
          self.world->barrier();
          if (self.rank == 1) {
            const Tensor got = self.world->recv({1031}, DType::float32, 0, 0).wait();
            expect_made<float>(got, 0, 0);
            fill<float>(got, [](std::int64_t) { return 66; });
          }
          self.world->barrier();
        }
      },
      2);
}

TEST_P(Messages, SoleOwnersMemoryIsHandedOver) {
  if (!backend().one_process) GTEST_SKIP() << "memory cannot leave a process";
  run_on_all_sizes(
      [](RankContext& self) {
        constexpr std::int64_t kBytes = 4 * 2053;
        const MemoryAccount& account = self.device.account();
        if (self.rank == 0) {
          Tensor message = made<float>(self.device, {2053}, 0, 0);
          const Tensor address = self.device.empty({1}, DType::int64);
          set_elements<std::int64_t>(address, {reinterpret_cast<std::intptr_t>(message.raw())});
          self.world->send(address, 1, 0).wait();
          self.world->send(std::move(message), 1, 1).wait();
          EXPECT_EQ(account.live(Category::activations), 8) << "the address alone is still here";
          EXPECT_GE(account.peak(Category::communication), kBytes) << "counted while on its way";
          self.world->barrier();
          self.world->barrier();
          EXPECT_EQ(account.live(Category::communication), 0);
        } else {
          self.world->barrier();
          if (self.rank == 1) {
            const auto address = elements<std::int64_t>(self.world->recv({1}, DType::int64, 0, 0).wait())[0];
            const Tensor message = self.world->recv({2053}, DType::float32, 0, 1).wait();
            EXPECT_EQ(reinterpret_cast<std::intptr_t>(message.raw()), address);
            EXPECT_TRUE(message.unique());
            EXPECT_EQ(account.live(Category::activations), kBytes);
            expect_made<float>(message, 0, 0);
          }
          self.world->barrier();
        }
      },
      2);
}

TEST_P(Messages, MismatchNamesBothShapesAndTypes) {
  run(backend().largest(), [](RankContext& self) {
    if (self.rank == 1) {
      self.world->send(self.device.zeros({3, 4}, DType::float32), 0, 0).wait();
      self.world->send(self.device.zeros({6}, DType::int32), 0, 0).wait();
    }
    self.world->barrier();
    if (self.rank == 0) {
      using testing::AllOf;
      using testing::HasSubstr;
      using testing::ThrowsMessage;
      EXPECT_THAT(
          [&] {
            self.world->recv({4, 3}, DType::float32, 1, 0).wait();
          },
          ThrowsMessage<std::logic_error>(
              AllOf(HasSubstr("(4,3) float32"), HasSubstr("(3,4) float32"), HasSubstr("rank 1"))));
      EXPECT_THAT([&] { self.world->recv({6}, DType::int64, 1, 0).wait(); },
                  ThrowsMessage<std::logic_error>(AllOf(HasSubstr("(6) int64"), HasSubstr("(6) int32"))));
    }
  });
}

TEST_P(Messages, AllToAllOfPartsThatTheOtherSideDoesNotExpectNamesBoth) {
  run(2, [](RankContext& self) {
    // Rank 0 sends nothing where rank 1 waits for three.
    const bool first = self.rank == 0;
    const Tensor in = self.device.zeros({first ? 2 : 6}, DType::float32);
    const Tensor out = self.device.zeros({first ? 6 : 5}, DType::float32);
    const std::vector<std::int64_t> sent = first ? std::vector<std::int64_t>{2, 0} : std::vector<std::int64_t>{4, 2};
    const std::vector<std::int64_t> received =
        first ? std::vector<std::int64_t>{2, 4} : std::vector<std::int64_t>{3, 2};
    Work work = self.world->all_to_all_v(in, sent, out, received);
    if (first) return work.wait();
    using testing::AllOf;
    using testing::HasSubstr;
    EXPECT_THAT([&] { work.wait(); }, testing::ThrowsMessage<std::logic_error>(
                                          AllOf(HasSubstr("3 float32 from rank 0"), HasSubstr("it sends 0 float32"))));
  });
}

// The world ranks of a communicator's members, in its order.
std::vector<int> members(RankContext& self, Communicator& comm) {
  const Tensor own = self.device.zeros({1}, DType::int32);
  set_elements<std::int32_t>(own, {self.rank});
  const Tensor all = self.device.zeros({comm.size()}, DType::int32);
  comm.all_gather(own, all).wait();
  return elements<std::int32_t>(all);
}

TEST_P(Split, ColorsAndKeys) {
  run_on_all_sizes([](RankContext& self) {
    // Color by rank mod 3; within it, odd ranks first, ties by rank.
    const auto comm = self.world->split(self.rank % 3, self.rank % 2 == 1 ? -4 : 2, "by three");
    std::vector<int> expected;
    for (int parity : {1, 0}) {
      for (int r = self.rank % 3; r < self.size; r += 3) {
        if (r % 2 == parity) expected.push_back(r);
      }
    }
    ASSERT_NE(comm, nullptr);
    EXPECT_EQ(comm->name(), "by three");
    ASSERT_EQ(comm->size(), static_cast<int>(expected.size()));
    EXPECT_EQ(expected[comm->rank()], self.rank);
    EXPECT_EQ(members(self, *comm), expected);
  });
}

TEST_P(Split, MinusOneGetsNone) {
  run_on_all_sizes([](RankContext& self) {
    const auto comm = self.world->split(self.rank == 0 ? -1 : 0, 0, "all but one");
    EXPECT_EQ(comm == nullptr, self.rank == 0);
    if (comm != nullptr) {
      EXPECT_EQ(comm->size(), self.size - 1);
    }
    EXPECT_EQ(self.world->split(-1, 0, "nobody"), nullptr);
    self.world->barrier();
  });
}

TEST_P(Split, OfASplitAndAfterItsParentIsGone) {
  run_on_all_sizes([](RankContext& self) {
    auto halves = self.world->split(self.rank / 4, self.rank, "four");
    auto pairs = halves->split(halves->rank() / 2, -self.rank, "two");
    halves.reset();
    std::vector<int> expected;
    const int first = self.rank - self.rank % 2;
    if (first + 1 < self.size) expected.push_back(first + 1);
    expected.push_back(first);
    EXPECT_EQ(members(self, *pairs), expected);
  });
}

TEST_P(Split, CommunicatorsDoNotDisturbEachOther) {
  run_on_all_sizes([](RankContext& self) {
    const auto other = self.world->split(0, -self.rank, "reversed");
    const Tensor a = made<float>(self.device, {20011}, self.rank, 0);
    const Tensor b = made<float>(self.device, {40009}, self.rank, 5);
    Work first;
    Work second;
    // Even ranks start and wait in the one order, odd ranks in the other.
    if (self.rank % 2 == 0) first = self.world->all_reduce(a, a, ReduceOp::sum);
    second = other->all_reduce(b, b, ReduceOp::max);
    if (self.rank % 2 == 1) first = self.world->all_reduce(a, a, ReduceOp::sum);
    (self.rank % 2 == 0 ? second : first).wait();
    (self.rank % 2 == 0 ? first : second).wait();
    expect_elements<float>(a, Reduced(self.size, ReduceOp::sum), "on world");
    const Reduced max(self.size, ReduceOp::max);
    expect_elements<float>(
        b, [&](std::int64_t i) { return max(i + 5); }, "on the other");
    // Equal tags and peers on two communicators are different messages.
    if (self.size > 1 && self.rank == 0) {
      self.world->send(made<float>(self.device, {3}, 1, 0), 1, 8);
      other->send(made<float>(self.device, {3}, 2, 0), self.size - 2, 8);
    } else if (self.rank == 1) {
      expect_made<float>(other->recv({3}, DType::float32, self.size - 1, 8).wait(), 2, 0);
      expect_made<float>(self.world->recv({3}, DType::float32, 0, 8).wait(), 1, 0);
    }
  });
}

// A random program that all ranks share, with waits at moments that each rank draws for itself.
class RandomProgram {
 public:
  RandomProgram(RankContext& self, unsigned seed) : self_(self), shared_(seed), own_(seed * 31 + self.rank) {
    comms_.push_back(self.world);
    split_.push_back(self.world->split(self.rank % 2, self.rank, "parity"));
    split_.push_back(self.world->split(self.rank / 3, -self.rank, "thirds"));
    for (const auto& comm : split_) comms_.push_back(comm.get());
    for (Communicator* comm : comms_) members_.push_back(members(self, *comm));
  }

  void run(int steps) {
    for (int step = 0; step < steps; ++step) {
      start(step);
      while (!pending_.empty() && draw(own_, 4) == 0) wait_for(draw(own_, static_cast<int>(pending_.size())));
      if (draw(own_, 8) == 0) std::this_thread::yield();
      if (draw(own_, 40) == 0) std::this_thread::sleep_for(std::chrono::microseconds(draw(own_, 300)));
    }
    while (!pending_.empty()) wait_for(draw(own_, static_cast<int>(pending_.size())));
  }

 private:
  static int draw(std::mt19937& random, int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }

  void start(int step) {
    const int which = draw(shared_, static_cast<int>(comms_.size()));
    const int kind = draw(shared_, 5);
    const std::int64_t count = draw(shared_, 3) == 0 ? draw(shared_, 60000) : draw(shared_, 500);
    const int place = draw(shared_, 64);
    Communicator& comm = *comms_[which];
    const std::vector<int>& ranks = members_[which];
    if (kind == 4) return message(step, count, place);
    const Tensor in = made<float>(self_.device, {count * (kind == 1 ? comm.size() : 1)}, self_.rank, step);
    const auto sum = [ranks, step](std::int64_t i) {
      int total = 0;
      for (int r : ranks) total += value(r, i + step);
      return total;
    };
    if (kind == 0) {
      expect(in, comm.all_reduce(in, in, ReduceOp::sum), sum);
    } else if (kind == 1) {
      const Tensor out = self_.device.empty({count}, DType::float32);
      const std::int64_t begin = comm.rank() * count;
      expect(out, comm.reduce_scatter(in, out, ReduceOp::sum), [=](std::int64_t i) { return sum(begin + i); });
    } else if (kind == 2) {
      const Tensor out = self_.device.empty({count * comm.size()}, DType::float32);
      expect(out, comm.all_gather(in, out), [=](std::int64_t i) { return value(ranks[i / count], i % count + step); });
    } else {
      const int root = place % comm.size();
      expect(in, comm.broadcast(in, root), [=](std::int64_t i) { return value(ranks[root], i + step); });
    }
  }

  // From one member of the world to another.
  void message(int step, std::int64_t count, int place) {
    const int from = place % self_.size;
    const int to = (from + 1 + place / self_.size % std::max(1, self_.size - 1)) % self_.size;
    if (from == to) return;
    if (self_.rank == from) self_.world->send(made<float>(self_.device, {count}, from, step), to, step % 2).wait();
    if (self_.rank != to) return;
    auto incoming = std::make_shared<Incoming>(self_.world->recv({count}, DType::float32, from, step % 2));
    pending_.push_back([=] { expect_made<float>(incoming->wait(), from, step); });
  }

  template <typename F>
  void expect(const Tensor& out, Work work, F of) {
    auto held = std::make_shared<Work>(std::move(work));
    pending_.push_back([=] {
      held->wait();
      expect_elements<float>(out, of, "stress");
    });
  }

  void wait_for(int i) {
    auto finish = std::move(pending_[i]);
    pending_.erase(pending_.begin() + i);
    finish();
  }

  RankContext& self_;
  std::mt19937 shared_;
  std::mt19937 own_;
  std::vector<std::unique_ptr<Communicator>> split_;
  std::vector<Communicator*> comms_;
  std::vector<std::vector<int>> members_;
  std::vector<std::function<void()>> pending_;
};

TEST_P(Split, StressWithRandomInterleavings) {
  for (unsigned seed = 1; seed <= 2; ++seed) {
    run_on_all_sizes([seed](RankContext& self) { RandomProgram(self, seed).run(120); });
  }
}

}  // namespace
}  // namespace cuboid::contract
