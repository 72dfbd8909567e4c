// What the emulation of CUDA must catch: faults planted on purpose.
#include <emulated_cuda.h>

#include "cuboid/comm/ranks.h"

#include "both.h"

namespace cuboid::ladder {
namespace {

// All tests of this program run with late starts, so that an order that only luck gives does not last.
constexpr int kDelay = 100;  // microseconds
const bool g_delayed = [] {
  emulated_cuda::set_delay(kDelay);
  return true;
}();

TEST(EmulationDeathTest, HostCodeThatReadsDeviceMemoryFaults) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(
      {
        const Tensor t = gpu().zeros({3}, DType::float32);
        gpu().synchronize();
        volatile float x = *t.data<float>();
        (void)x;
      },
      testing::KilledBySignal(SIGSEGV), "");
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
  EXPECT_GT(wrong_sums(true), 0);
  emulated_cuda::set_delay(kDelay);
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

}  // namespace
}  // namespace cuboid::ladder
