// What the emulation of CUDA must catch: faults planted on purpose.
#include <emulated_cuda.h>

#include "cuboid/comm/ranks.h"
#include "cuboid/train/step_runner.h"

#include "both.h"
#include "golden/harness.h"

namespace cuboid::ladder {
namespace {

// All tests of this program run with late starts, so that an order that only luck gives does not last.
constexpr int kDelay = 100;  // microseconds
const bool g_delayed = [] {
  emulated_cuda::set_devices(8);
  emulated_cuda::set_delay(kDelay);
  return true;
}();

TEST(EmulationDeathTest, HostCodeThatReadsDeviceMemoryFaults) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(
      {
        const Tensor t = gpu().zeros({3}, DType::float32);
        gpu().synchronize();
        volatile float x = *t.data<float>();
        (void)x;
      },
      "");
}

// Two ranks on the GPU add numbers that a slow kernel is still making; returns how many of the sums are wrong.
int wrong_sums(bool forget) {
  std::atomic<int> wrong = 0;
  run_ranks(2,
            [&](RankContext& context) {
              const Place p{context.device};
              const Tensor ones = p.device.host().empty({50'000}, DType::float32);
              for (float& x : ones.span<float>()) x = 1;
              for (int round = 0; round < 20; ++round) {
                const Tensor x = p.zeros({50'000});
                for (int i = 0; i < 4; ++i) kernels::add(p.device, x, p.device.to_device(ones), x);
                if (forget) emulated_cuda::forget_waits(0, 1'000);
                all_reduce_in_place(*context.world, x);
                if (forget) {
                  EXPECT_GT(emulated_cuda::waits_made(), 0);
                  emulated_cuda::forget_waits(0, 0);
                }
                const Tensor here = p.device.to_host(x);
                wrong += here.data<float>()[0] != 8 || here.data<float>()[49'999] != 8;
                context.world->barrier();
              }
            },
            {.gpus = {0, 0}});
  return wrong;
}

TEST(Emulation, AForgottenWaitGivesWrongNumbers) {
  emulated_cuda::set_delay(2000);
  EXPECT_EQ(wrong_sums(false), 0);
#if !defined(__SANITIZE_THREAD__)
  EXPECT_GT(wrong_sums(true), 0);
#endif
  emulated_cuda::set_delay(kDelay);
}

#if defined(__SANITIZE_THREAD__)
// Also where luck gives the right numbers.
TEST(EmulationDeathTest, AForgottenWaitIsADataRace) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        emulated_cuda::set_delay(0);
        wrong_sums(true);
        std::exit(0);  // which ThreadSanitizer turns into its own status where it has something to report
      },
      testing::ExitedWithCode(66), "ThreadSanitizer: data race");
}
#endif

// Two ranks with a GPU each, which call the same two collectives, one of them perhaps in the other order.
void call_two(RankContext& context, bool swapped) {
  const Place p{context.device};
  const Tensor sum = p.zeros({3'000});
  const Tensor parts = p.zeros({3'000});
  const Tensor part = p.zeros({1'500});
  Communicator& world = *context.world;
  Work first = swapped ? world.all_gather(part, parts) : world.all_reduce(sum, sum, ReduceOp::sum);
  Work second = swapped ? world.all_reduce(sum, sum, ReduceOp::sum) : world.all_gather(part, parts);
  first.wait();
  second.wait();
  p.device.synchronize();
}

TEST(Emulation, CallsInAnotherOrderOnOneRankAreADeadlineThatNamesThem) {
  run_ranks(2, [](RankContext& context) { call_two(context, false); }, {.gpus = {0, 1}});
  try {
    run_ranks(2, [](RankContext& context) { call_two(context, context.rank == 1); }, {.deadline = 0.3, .gpus = {0, 1}});
    ADD_FAILURE() << "swapped calls went through";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::deadline) << error.what();
    EXPECT_NE(std::string(error.what()).find("of 3000 float32 of communicator \"world\""), std::string::npos)
        << error.what();
  }
}

TEST(Emulation, MessagesGoByTagThroughChannelsOfOneDirection) {
  run_ranks(2,
            [](RankContext& context) {
              const Place p{context.device};
              const auto there = context.world->split(0, context.rank, "0 to 1");
              const auto back = context.world->split(0, context.rank, "1 to 0");
              Communicator& out = context.rank == 0 ? *there : *back;
              Communicator& in = context.rank == 0 ? *back : *there;
              const int peer = 1 - context.rank;
              const auto message = [&](int tag) { return p.normals(std::to_string(tag), {1'000 + tag, 3}); };
              for (const int tag : {5, 6, 7}) out.send(message(tag), peer, tag).wait();
              std::vector<Incoming> incoming;
              for (const int tag : {7, 5, 6}) incoming.push_back(in.recv({1'000 + tag, 3}, DType::float32, peer, tag));
              for (int i = 0; i < 3; ++i) {
                const int tag = 5 + (i + 2) % 3;
                const Tensor came = incoming[static_cast<std::size_t>(i)].wait();
                EXPECT_EQ(numbers_of(p.device, came), numbers_of(p.device, message(tag))) << tag;
              }
              EXPECT_THROW(out.recv({4}, DType::float32, peer, 8), std::logic_error) << "the other direction";
              EXPECT_EQ(p.device.account().live(Category::activations), 0);
              p.device.synchronize();
            },
            {.gpus = {0, 1}});
}

TEST(Emulation, ARankThatFailsFreesThoseThatWaitForItsGpu) {
  EXPECT_THROW(run_ranks(2,
                         [](RankContext& context) {
                           if (context.rank == 1) throw Error(ErrorKind::failed, "planted");
                           const Tensor x = context.device.zeros({100}, DType::float32);
                           all_reduce_in_place(*context.world, x);
                           context.device.synchronize();
                         },
                         {.gpus = {0, 1}}),
               Error);
}

TEST(Emulation, TwoRanksOnOneGpuAreRefusedByNcclsRule) {
  try {
    run_ranks(3, [](RankContext&) {}, {.gpus = {0, 1, 0}});
    ADD_FAILURE() << "ranks share a GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    for (const char* part : {"ranks 0 and 2 use the same GPU", "GPU-", "on host "}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Emulation, MemoryIsGivenBack) {
  const std::size_t before = emulated_cuda::allocated_bytes();
  {
    const Device device = Device::cuda(0);
    const Tensor t = device.zeros({100}, DType::float32);
    kernels::matmul(device, t.reshape({10, 10}), t.reshape({10, 10}), device.empty({10, 10}, DType::float32));
    EXPECT_GT(emulated_cuda::allocated_bytes(), before);
  }
  EXPECT_EQ(emulated_cuda::allocated_bytes(), before);
}

TEST(Emulation, ProductsNeedTheAlignmentTheyWerePlannedWith) {
  const Place p{gpu()};
  const Tensor wide = p.normals("x", {1 + 6 * 8});
  const Tensor c = p.empty({6, 6});
  // The same shape at two alignments: two plans.
  kernels::matmul(gpu(), wide.narrow(0, 48).reshape({6, 8}), wide.narrow(0, 48).reshape({8, 6}), c);
  kernels::matmul(gpu(), wide.narrow(1, 48).reshape({6, 8}), wide.narrow(1, 48).reshape({8, 6}), c);
  gpu().synchronize();
}

// Every action of the schedule is a range of the profiler, in the row's order; what is done inside it nests there.
TEST(Profile, ActionsAreRangesAndWhatTheyDoNestsInThem) {
  RunConfig run = golden::oracle_run({.model = "gpt2-tiny", .pp = 2, .dp = 2, .micro_batch = 1});
  const ModelConfig model = golden::oracle_model("gpt2-tiny");
  const PipelineLayout layout = plan_pipeline(run, model);
  std::vector<std::vector<emulated_cuda::Range>> ranges(4);
  run_ranks(4,
            [&](RankContext& context) {
              StepRunner runner(context, run, model, layout);
              emulated_cuda::take_ranges();
              runner.step(0);
              EXPECT_EQ(emulated_cuda::open_ranges(), 0);
              ranges[static_cast<std::size_t>(context.rank)] = emulated_cuda::take_ranges();
            },
            {.gpus = {0, 0, 0, 0}});
  for (int rank = 0; rank < 4; ++rank) {
    const auto& row = layout.training.rows[static_cast<std::size_t>(run.grid.coordinate(rank)[Axis::pp])];
    std::vector<std::string> actions;
    std::map<std::string, std::vector<std::string>> inside;  // by the action's name
    for (const auto& [depth, name] : ranges[static_cast<std::size_t>(rank)]) {
      if (depth == 0) actions.push_back(name);
      if (depth == 1) inside[actions.back()].push_back(name);
    }
    std::vector<std::string> expected;
    for (const Action& action : row) expected.push_back(to_string(action));
    EXPECT_EQ(actions, expected) << "rank " << rank;
    const std::string step = to_string(row.back());
    EXPECT_EQ(row.back().kind, ActionKind::step);
    EXPECT_EQ(inside[step], (std::vector<std::string>{"reduce tied gradients", "gradient norm", "optimizer"}));
    const bool last = run.grid.coordinate(rank)[Axis::pp] == 1;
    EXPECT_EQ(inside[last ? "1F2" : "0B2"], std::vector<std::string>{last ? "wait for 1RECV_F2" : "wait for 0RECV_B2"});
    std::size_t reductions = 0;
    for (const auto& [action, names] : inside) {
      reductions += static_cast<std::size_t>(std::count(names.begin(), names.end(), "reduce gradients over dp"));
    }
    EXPECT_GT(reductions, 0U) << "rank " << rank;
  }
}

}  // namespace
}  // namespace cuboid::ladder
