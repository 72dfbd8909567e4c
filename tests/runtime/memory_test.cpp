// Memory that is counted and limited, and what a machine has of it.
#include <atomic>
#include <functional>
#include <thread>

#include "cuboid/runtime/device.h"
#include "cuboid/runtime/machine_memory.h"
#include "cuboid/runtime/memory_table.h"

#include "formats/files.h"

namespace cuboid {
namespace {

std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const MemoryExceeded& error) {
    EXPECT_EQ(error.exit_status(), 3);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

TEST(MemoryLimit, RefusesTheBufferThatWouldPassItAndChangesNothing) {
  const Device device;
  const Tensor before = device.empty({100}, DType::float32, Category::parameters);
  const auto limit = std::make_shared<MemoryLimit>(1000, "--memory-limit 1000 B");
  device.account().set_limit(limit);
  const Tensor exact = device.empty({300}, DType::bfloat16);  // 400 + 600: all of it
  const std::string why = refusal_of([&] { (void)device.empty({1}, DType::float32, Category::workspace); });
  test::expect_mentions(why, {"--memory-limit 1000 B", "4 B more for workspace", "parameters", "400 B", "activations",
                              "600 B", "held", "peak"});
  EXPECT_EQ(device.account().live().total, 1000);
  EXPECT_EQ(device.account().peaks().total, 1000);
  EXPECT_EQ(device.account().peak(Category::workspace), 0);
}

TEST(MemoryLimit, IsSharedByAccountsAndGivenBack) {
  const auto limit = std::make_shared<MemoryLimit>(1000, "the machine");
  const Device one;
  const Device two;
  one.account().set_limit(limit);
  two.account().set_limit(limit);
  Tensor held = one.empty({200}, DType::float32);
  refusal_of([&] { (void)two.empty({51}, DType::float32); });
  const Tensor kept = two.empty({50}, DType::float32);
  refusal_of([&] { two.adopt(held); });  // while it changes hands it counts twice
  EXPECT_EQ(one.account().live().total, 800);
  held = Tensor();
  const Tensor again = two.empty({200}, DType::float32);
  EXPECT_EQ(one.account().live().total, 0);
  EXPECT_EQ(two.account().live().total, 1000);
  const Device third;
  const Tensor large = third.empty({1}, DType::float32);
  refusal_of([&] { third.account().set_limit(limit); });
}

TEST(MemoryLimit, HoldsAmongThreads) {
  constexpr std::int64_t kRoom = 37;
  const auto limit = std::make_shared<MemoryLimit>(4 * kRoom, "the machine");
  std::atomic<std::int64_t> granted = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      const Device device;
      device.account().set_limit(limit);
      std::vector<Tensor> held;
      for (int n = 0; n < 1000; ++n) {
        try {
          held.push_back(device.empty({1}, DType::float32));
          EXPECT_LE(++granted, kRoom);
        } catch (const MemoryExceeded&) {
          granted -= static_cast<std::int64_t>(held.size());
          held.clear();
        }
      }
      granted -= static_cast<std::int64_t>(held.size());
      held.clear();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(limit->take(4 * kRoom)) << "all has been given back";
}

TEST(MemoryTable, RanksWithEqualBytesShareARow) {
  const MemoryUse small{{4096, 0, 10, 0, 0, 0}, 4106};
  const MemoryUse large{{4096, 0, 5 << 20, 0, 0, 0}, 4096 + (5 << 20)};
  EXPECT_EQ(memory_table_of_ranks({small, small, large, small, large}),
            "                  parameters     optimizer         total\n"
            "  ranks 0-1, 3         4 KiB          10 B      4.01 KiB\n"
            "  ranks 2, 4           4 KiB         5 MiB         5 MiB");
  std::vector<MemoryUse> many;
  for (int rank = 0; rank < 20; ++rank) many.push_back({{rank, 0, 0, 0, 0, 0}, rank});
  const std::string table = memory_table_of_ranks(many, 3);
  test::expect_mentions(table, {"rank 19", "rank 18", "rank 17", "and 17 ranks with less"});
  EXPECT_EQ(table.find("rank 16"), std::string::npos);
}

TEST(MachineMemory, IsWhatTheControlGroupLeavesOfIt) {
  const test::TemporaryFolder root;
  root.write("proc/meminfo", "MemTotal:       16000 kB\nMemFree:        200 kB\nMemAvailable:   9000 kB\n");
  EXPECT_EQ(machine_memory(root.path()).available, 9000 * 1024);
  EXPECT_EQ(machine_memory(root.path()).present, 16000 * 1024);
  EXPECT_EQ(machine_memory(root.path()).cgroup, 0);

  // Version 2: the tightest level counts, and cache that can be dropped is no use of memory.
  root.write("proc/self/cgroup", "0::/outer/inner\n");
  root.write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.write("sys/fs/cgroup/outer/inner/memory.current", "1000000\n");
  root.write("sys/fs/cgroup/outer/memory.max", "4000000\n");
  root.write("sys/fs/cgroup/outer/memory.current", "3000000\n");
  root.write("sys/fs/cgroup/outer/memory.stat", "anon 1\nactive_file 77\ninactive_file 500000\n");
  EXPECT_EQ(machine_memory(root.path()).available, 1500000);
  EXPECT_EQ(machine_memory(root.path()).cgroup, 4000000);
  root.write("sys/fs/cgroup/outer/inner/memory.max", "1000100\n");
  EXPECT_EQ(machine_memory(root.path()).available, 100);
  EXPECT_EQ(machine_memory(root.path()).cgroup, 1000100);

  // Version 1; in a container the path is the host's and only the mount's root is there.
  root.write("proc/self/cgroup", "12:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "7000000\n");
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000000\n");
  EXPECT_EQ(machine_memory(root.path()).available, 1000000);
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(machine_memory(root.path()).available, 9000 * 1024);
}

}  // namespace
}  // namespace cuboid
