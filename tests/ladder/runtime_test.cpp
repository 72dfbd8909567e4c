// The lowest rungs: memory, copies, streams.
#include "cuboid/runtime/gpus.h"
#include "cuboid/runtime/stopwatch.h"

#include "both.h"
#include "src/runtime/cuda/gpu.h"

namespace cuboid::ladder {
namespace {

TEST(Runtime, FindsGpus) {
  const GpuReport report = find_gpus();
  EXPECT_TRUE(report.built);
  ASSERT_FALSE(report.gpus.empty()) << report.problem;
  EXPECT_EQ(report.gpus.front().uuid.size(), 40U) << report.gpus.front().uuid;
  EXPECT_GT(report.gpus.front().memory_bytes, 0);
}

TEST(Runtime, CopiesComeBack) {
  for (const std::int64_t n : {1, 1000, 300'007}) {  // staged in pinned memory, and not
    const Place p{gpu()};
    const Tensor there = p.normals("x", {n});
    const Tensor twin = gpu().clone(there);
    EXPECT_FALSE(there.on_host());
    EXPECT_EQ(numbers_of(gpu(), twin), numbers_of(Device(), Place{Device()}.normals("x", {n})));
    gpu().zero(twin);
    EXPECT_EQ(numbers_of(gpu(), twin), std::vector<double>(static_cast<std::size_t>(n)));
    const std::vector<float> ones(static_cast<std::size_t>(n), 1.0F);
    gpu().write(ones.data(), twin);
    EXPECT_EQ(numbers_of(gpu(), twin), std::vector<double>(static_cast<std::size_t>(n), 1.0));
  }
}

TEST(Runtime, AStreamWaitsForAnother) {
  const std::int64_t n = 1'000'003;
  const Device device = Device::cuda(0);
  const Place p{device};
  const Tensor there = p.normals("x", {n});
  const Tensor first = device.zeros({n}, DType::float32);
  const Tensor second = device.zeros({n}, DType::float32);
  device.synchronize();
  const auto copy = [&](const cuda::Stream& stream, const Tensor& from, const Tensor& to) {
    CUBOID_CUDA(cudaMemcpyAsync(to.raw(), from.raw(), from.bytes(), cudaMemcpyDeviceToDevice, stream.get()));
  };
  const cuda::Stream one;
  const cuda::Stream other;
  for (int i = 0; i < 20; ++i) copy(one, there, first);  // so that the other one comes early
  other.wait(one.mark());
  copy(other, first, second);
  other.synchronize();
  EXPECT_EQ(numbers_of(device, second), numbers_of(device, there));
}

TEST(Runtime, AStopwatchTellsTheDevicesTime) {
  Stopwatch watch(gpu(), 3);
  const Tensor t = gpu().zeros({4'000'037}, DType::float32);
  watch.lap();
  for (int i = 0; i < 50; ++i) gpu().clone(t);
  watch.lap();
  gpu().clone(t);
  watch.lap();
  const std::vector<double> seconds = watch.seconds();
  ASSERT_EQ(seconds.size(), 2U);
  EXPECT_GT(seconds[1], 0);
  EXPECT_GT(seconds[0], 5 * seconds[1]) << "50 copies against one";
  EXPECT_LT(seconds[0], 60);
}

TEST(Runtime, MemoryIsCountedAndReused) {
  const Device device = Device::cuda(0);
  void* first = nullptr;
  {
    const Tensor t = device.empty({1000}, DType::float32, Category::gradients);
    first = t.raw();
    EXPECT_EQ(device.account().live(Category::gradients), 4000);
  }
  EXPECT_EQ(device.account().live(Category::gradients), 0);
  EXPECT_EQ(device.empty({1001}, DType::float32).raw(), first) << "a block of the same capacity is taken again";
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0U);
}

TEST(Runtime, ErrorsNameTheCall) {
  try {
    Device::cuda(4711);
    ADD_FAILURE() << "a GPU of that number was used";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::failed);
    EXPECT_NE(std::string(error.what()).find("cudaSetDevice(ordinal)"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("cudaErrorInvalidDevice"), std::string::npos) << error.what();
  }
}

TEST(Runtime, RefusesMoreMemoryThanThereIs) {
  EXPECT_THROW(gpu().empty({std::int64_t{1} << 46}, DType::float32), std::bad_alloc);
  EXPECT_EQ(numbers_of(gpu(), gpu().zeros({3}, DType::float32)), std::vector<double>(3)) << "and goes on";
}

}  // namespace
}  // namespace cuboid::ladder
