// What happens when ranks fail, hang or disagree, and what waiting costs.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <omp.h>
#include <pthread.h>
#include <sys/resource.h>

#include "backend.h"

namespace cuboid::contract {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Failures : public OnBackend {
 protected:
  /// The error that the run ends with.
  Error failure_of(int ranks, const Body& body, double deadline = 60) const {
    try {
      backend().run(ranks, body, {.deadline = deadline});
    } catch (const Error& error) {
      return error;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not an Error: " << error.what();
    }
    ADD_FAILURE() << "it did not fail";
    return Error(ErrorKind::failed, "");
  }
};
CUBOID_ON_BACKENDS(Failures, 8);

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST_P(Failures, FirstCauseIsReportedAndEverybodyStops) {
  // Each way to wait, by ranks other than the failing one, on the world and on groups without it.
  const std::vector<std::pair<std::string, Body>> waits = {
      {"barrier", [](RankContext& self) { self.world->barrier(); }},
      {"small all_reduce",
       [](RankContext& self) { all_reduce_in_place(*self.world, self.device.zeros({3}, DType::float32)); }},
      {"large all_gather",
       [](RankContext& self) {
         const Tensor in = self.device.zeros({100003}, DType::float32);
         const Tensor out = self.device.empty({100003 * self.size}, DType::float32);
         self.world->all_gather(in, out).wait();
       }},
      {"recv", [](RankContext& self) { self.world->recv({1}, DType::float32, 2, 0).wait(); }},
      {"split", [](RankContext& self) { self.world->split(0, 0, "all"); }},
  };
  for (const auto& [name, wait] : waits) {
    std::atomic<int> aborted = 0;
    std::atomic<std::int64_t> failed_at = 0;
    std::atomic<std::int64_t> last_to_stop = 0;
    const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch().count(); };
    const Error error = failure_of(5, [&](RankContext& self) {
      if (self.rank == 2) {
        std::this_thread::sleep_for(milliseconds(50));
        failed_at = now();
        throw Error(ErrorKind::request, "token 300 of file.bin is too large");
      }
      try {
        wait(self);
      } catch (const Aborted&) {
        ++aborted;
        const std::int64_t stopped_at = now();
        std::int64_t seen = last_to_stop;
        while (seen < stopped_at && !last_to_stop.compare_exchange_weak(seen, stopped_at)) {
        }
        throw std::runtime_error("cannot go on");  // what a consequence may turn into
      }
    });
    EXPECT_STREQ(error.what(), "rank 2: token 300 of file.bin is too large") << name;
    EXPECT_EQ(error.kind(), ErrorKind::request) << name;
    EXPECT_EQ(backend().total(aborted), 4) << name;
    const std::int64_t slowest = backend().most(last_to_stop) - backend().total(failed_at);
    EXPECT_LT(static_cast<double>(slowest) * 1e-9, 1.0) << name;
  }
}

TEST_P(Failures, RanksThatNeverMeetTheFailedOneStopToo) {
  const Error error = failure_of(6, [](RankContext& self) {
    const auto pair = self.world->split(self.rank / 2, 0, "pair");
    if (self.rank == 1) throw Error(ErrorKind::failed, "disk full");
    if (self.rank == 0) pair->barrier();
    const Tensor x = self.device.zeros({17}, DType::float32);
    while (self.rank == 2 || self.rank == 3) all_reduce_in_place(*pair, x);  // endless: always complete
    // Endless: sending does not wait, and receiving is always possible.
    while (self.rank == 4) pair->send(self.device.zeros({1}, DType::float32), 1, 0);
    while (self.rank == 5) pair->recv({1}, DType::float32, 0, 0).wait();
  });
  EXPECT_STREQ(error.what(), "rank 1: disk full");
}

TEST_P(Failures, KindsOfExceptionsAreKept) {
  for (ErrorKind kind : {ErrorKind::request, ErrorKind::failed, ErrorKind::deadline}) {
    EXPECT_EQ(failure_of(2, [&](RankContext&) { throw Error(kind, "x"); }).kind(), kind);
  }
  EXPECT_THAT([&] { run(3, [](RankContext& self) { CUBOID_CHECK(self.rank != 1, "a bug"); }); },
              testing::ThrowsMessage<std::logic_error>(AllOf(HasSubstr("rank 1: "), HasSubstr("a bug"))));
  EXPECT_STREQ(failure_of(2,
                          [](RankContext& self) {
                            if (self.rank == 1) throw std::runtime_error("what it says");
                          })
                   .what(),
               "rank 1: what it says");
  EXPECT_THAT(failure_of(2,
                         [](RankContext& self) {
                           if (self.rank == 0) throw std::bad_alloc();
                         })
                  .what(),
              HasSubstr("rank 0: out of memory"));
  EXPECT_THAT(failure_of(2,
                         [](RankContext& self) {
                           if (self.rank == 1) throw 7;
                         })
                  .what(),
              HasSubstr("rank 1: "));
}

TEST_P(Failures, MemoryOfAFailedRankOutlivesTheOthersWork) {
  // The failed rank's buffers go while others may be adding them up.
  for (int round = 0; round < 20; ++round) {
    const Error error = failure_of(4, [&](RankContext& self) {
      Tensor x = self.device.zeros({300007}, DType::float32);
      Work work = self.world->all_reduce(x, x, ReduceOp::sum);
      if (self.rank == round % 4) throw Error(ErrorKind::failed, "gave up");
      work.wait();
      self.world->barrier();
    });
    EXPECT_EQ(error.what(), "rank " + std::to_string(round % 4) + ": gave up");
  }
}

// All members see the same error, without anybody failing first.
std::vector<std::string> errors_of(const Backend& backend, int ranks, const Body& body) {
  std::mutex mutex;
  std::vector<std::string> errors;
  backend.run(ranks,
              [&](RankContext& self) {
                try {
                  body(self);
                } catch (const Error& error) {
                  EXPECT_EQ(error.kind(), ErrorKind::failed);
                  const std::scoped_lock lock(mutex);
                  errors.emplace_back(error.what());
                }
              },
              {.deadline = 60});
  return errors;
}

TEST_P(Failures, MembersThatDisagreeAreNamed) {
  struct Case {
    Body odd_one, others;
    std::string says, but;
  };
  const auto reduce = [](std::int64_t count, DType dtype, ReduceOp op) {
    return [=](RankContext& self) { all_reduce_in_place(*self.world, self.device.zeros({count}, dtype), op); };
  };
  const auto broadcast = [](int root) {
    return [=](RankContext& self) { self.world->broadcast(self.device.zeros({5}, DType::int64), root).wait(); };
  };
  const Body gather = [](RankContext& self) {
    self.world->all_gather(self.device.zeros({13}, DType::float32), self.device.zeros({13 * self.size}, DType::float32))
        .wait();
  };
  const Body barrier = [](RankContext& self) { self.world->barrier(); };
  const Body split = [](RankContext& self) { self.world->split(0, 0, "x"); };
  const auto f32 = DType::float32;
  const std::vector<Case> cases = {
      {reduce(24, f32, ReduceOp::sum), reduce(12, f32, ReduceOp::sum), "24 float32", "12 float32"},
      {reduce(0, f32, ReduceOp::sum), reduce(70001, f32, ReduceOp::sum), "0 float32", "70001 float32"},
      {reduce(12, DType::bfloat16, ReduceOp::sum), reduce(12, f32, ReduceOp::sum), "12 bfloat16", "12 float32"},
      {reduce(12, f32, ReduceOp::max), reduce(12, f32, ReduceOp::sum), "all_reduce (max)", "all_reduce (sum)"},
      {broadcast(0), broadcast(2), "member 0", "member 2"},
      {gather, reduce(13, f32, ReduceOp::sum), "all_gather of 13", "all_reduce (sum) of 13"},
      {barrier, gather, "barrier", "all_gather"},
      {split, barrier, "split", "barrier"},
  };
  for (int odd : {0, 1, 3}) {
    for (const Case& c : cases) {
      const auto errors = errors_of(backend(), 4, [&](RankContext& self) {
        self.world->barrier();
        self.rank == odd ? c.odd_one(self) : c.others(self);
      });
      // Whoever came second noticed it; the pair always has the odd one in it.
      EXPECT_EQ(backend().total(static_cast<std::int64_t>(errors.size())), 4);
      EXPECT_THAT(errors, testing::Each(AllOf(HasSubstr(c.says), HasSubstr(c.but), HasSubstr("operation 1 of"),
                                              HasSubstr("\"world\""), HasSubstr("rank " + std::to_string(odd)))));
    }
  }
}

// Keeps a rank from arriving until another's wait has ended, however slow the machine; where the other one lives in
// another process, for some times its deadline.
class Absence {
 public:
  Absence(const Backend& backend, double deadline)
      : seen_(backend.one_process), limit_(static_cast<int>(4000 * deadline)) {}
  void last_until_over() const {
    const auto start = std::chrono::steady_clock::now();
    while (!over_ && (seen_ || std::chrono::steady_clock::now() - start < limit_)) {
      std::this_thread::sleep_for(milliseconds(2));
    }
  }
  /// Waits as told; whatever comes of it, the absence is over.
  void during(const std::function<void()>& wait) {
    try {
      wait();
    } catch (...) {
      over_ = true;
      throw;
    }
    over_ = true;
  }

 private:
  const bool seen_;
  const milliseconds limit_;
  std::atomic<bool> over_ = false;
};

TEST_P(Failures, DeadlineNamesTheOperationAndWhoIsMissing) {
  Absence absence(backend(), 0.4);
  const auto start = std::chrono::steady_clock::now();
  const Error error = failure_of(
      6,
      [&](RankContext& self) {
        const auto odd = self.world->split(self.rank % 2, 0, "odd ones");
        if (self.rank % 2 == 0) return;
        odd->barrier();
        if (self.rank != 1) return absence.last_until_over();
        absence.during([&] { all_reduce_in_place(*odd, self.device.zeros({21}, DType::float32)); });
      },
      0.4);
  EXPECT_LT(seconds_since(start), backend().one_process ? 3.0 : 6.0);
  EXPECT_EQ(error.kind(), ErrorKind::deadline);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1: "), HasSubstr("all_reduce (sum) of 21 float32"),
                                  HasSubstr("operation 1"), HasSubstr("\"odd ones\""), HasSubstr("member 0 of 3"),
                                  HasSubstr("ranks 3, 5"), Not(HasSubstr("rank 0"))));
}

TEST_P(Failures, DeadlineOfAReceive) {
  Absence absence(backend(), 0.2);
  const Error error = failure_of(
      3,
      [&](RankContext& self) {
        if (self.rank == 2) absence.during([&] { self.world->recv({8, 3}, DType::bfloat16, 0, 41).wait(); });
        if (self.rank == 0) absence.last_until_over();
      },
      0.2);
  EXPECT_EQ(error.kind(), ErrorKind::deadline);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 2: "), HasSubstr("recv of (8,3) bfloat16 from rank 0, tag 41"),
                                  HasSubstr("\"world\"")));
}

TEST_P(Failures, TheDeadlineIsForOneWaitNotForTheRun) {
  backend().run(3,
                [](RankContext& self) {
                  for (int i = 0; i < 4; ++i) {
                    if (self.rank == i % 3) std::this_thread::sleep_for(milliseconds(250));
                    self.world->barrier();
                  }
                },
                {.deadline = 0.75});
}

TEST_P(Failures, ARankThatEndedIsNotWaitedFor) {
  const auto start = std::chrono::steady_clock::now();
  const Error collective = failure_of(4, [](RankContext& self) {
    if (self.rank != 1) self.world->barrier();
  });
  EXPECT_THAT(collective.what(), AllOf(HasSubstr("barrier"), HasSubstr("rank 1 ended without calling it")));
  const Error message = failure_of(4, [](RankContext& self) {
    if (self.rank == 3) self.world->send(self.device.zeros({1}, DType::float32), 0, 0);
    if (self.rank != 0) return;
    self.world->recv({1}, DType::float32, 3, 0).wait();  // sent before its end
    self.world->recv({1}, DType::float32, 3, 0).wait();
  });
  EXPECT_THAT(message.what(), AllOf(HasSubstr("rank 0: recv"), HasSubstr("from rank 3"), HasSubstr("sender ended")));
  EXPECT_LT(seconds_since(start), 5.0);
}

class Ranks : public OnBackend {};
CUBOID_ON_BACKENDS(Ranks, 8);

TEST_P(Ranks, ContextOfARank) {
  for (int threads : {1, 3}) {
    std::atomic<int> seen = 0;
    backend().run(4,
                  [&](RankContext& self) {
                    seen += 1 << (4 * self.rank);
                    EXPECT_EQ(self.size, 4);
                    EXPECT_EQ(self.world->rank(), self.rank);
                    EXPECT_EQ(self.world->size(), 4);
                    EXPECT_EQ(self.world->name(), "world");
                    EXPECT_EQ(omp_get_max_threads(), threads);
                    char name[16] = {};
                    pthread_getname_np(pthread_self(), name, sizeof(name));
                    EXPECT_EQ(name, "rank " + std::to_string(self.rank));
                    const Tensor own = self.device.zeros({self.rank + 3}, DType::float32);
                    EXPECT_EQ(self.device.account().live(Category::activations), 4 * (self.rank + 3))
                        << "an account of its own";
                  },
                  {.threads_per_rank = threads});
    EXPECT_EQ(backend().total(seen), 0x1111) << "each rank once";
  }
}

TEST_P(Ranks, WaitingDoesNotBurnACore) {
  const auto cpu_seconds = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = cpu_seconds();
  backend().run(8,
                [](RankContext& self) {
                  if (self.rank == 5) {
                    std::this_thread::sleep_for(milliseconds(500));
                    self.world->send(self.device.zeros({1}, DType::float32), 0, 0);
                  }
                  if (self.rank == 0) self.world->recv({1}, DType::float32, 5, 0).wait();
                  self.world->barrier();
                },
                {});
  EXPECT_LT(cpu_seconds() - before, 0.15);
}

}  // namespace
}  // namespace cuboid::contract
