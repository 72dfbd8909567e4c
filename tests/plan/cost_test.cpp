// The cost model against values computed by hand on a cluster of round numbers: 4 devices a node that share 2 links.
#include "cuboid/plan/cost.h"

#include <cmath>

#include <gtest/gtest.h>

namespace cuboid {
namespace {

using Operation = TracedCommunication::Operation;

Cluster round_cluster() {
  Cluster cluster;
  cluster.name = "round";
  cluster.device = {.name = "device",
                    .memory_bytes = 1'000'000'000,
                    .bfloat16_flops = 1e12,
                    .float32_flops = 5e11,
                    .memory_bandwidth = 1e11,
                    .processors = 10};
  cluster.levels = {{.name = "node", .size = 4, .links = 1, .link_bandwidth = 1e10, .latency = 1e-6},
                    {.name = "fabric", .size = 64, .links = 2, .link_bandwidth = 1e9, .latency = 1e-5}};
  SoftwareStack& stack = cluster.stack;
  stack.matmul_efficiency = 0.5;
  stack.matmul_tile_rows = 100;
  stack.matmul_tile_columns = 200;
  stack.matmul_fill = 0;
  stack.misaligned_slowdown = 3;
  stack.memory_efficiency = 0.5;
  stack.launch_seconds = 1e-6;
  stack.row_traffic = 1;
  return cluster;
}

Grid grid(int tp, int pp, int dp, const char* order = "tp-cp-ep-dp-pp") {
  return Grid({{tp, 1, 1, dp, pp}}, order);
}

TracedKernel matmul(std::int64_t m, std::int64_t n, std::int64_t k) {
  TracedKernel kernel;
  kernel.kind = TracedKernel::Kind::matmul;
  kernel.dtype = DType::bfloat16;
  kernel.m = m;
  kernel.n = n;
  kernel.k = k;
  return kernel;
}

TEST(MatmulCost, WholeWavesRunAtTheStatedEfficiency) {
  // 10 tiles on 10 processors, one wave: 2·1000·200·8000 FLOPs at half of 1e12.
  EXPECT_DOUBLE_EQ(kernel_seconds(round_cluster(), matmul(1000, 200, 8000)), 3.2e9 / 5e11 + 1e-6);
}

TEST(MatmulCost, AWaveThatIsNotFullTakesAsLongAsOneThatIs) {
  const Cluster cluster = round_cluster();
  // 11 tiles of 100 × 200 are two waves, 4e4 elements of output; as tiles of half the width 22 are three, 3e4 at 0.93;
  // a quarter of the area 44, five waves, 2.5e4 at 0.8: the least is 2.5e4 / 0.8 = 31,250.
  const double quantised = 2 * 31250.0 * 8000 * 10 / 5e11 + 1e-6;
  EXPECT_DOUBLE_EQ(kernel_seconds(cluster, matmul(1096, 200, 8000)), quantised);
  EXPECT_GT(quantised, 1.1 * 3.2e9 / 5e11);
}

TEST(MatmulCost, MisalignedRowsAreSlower) {
  const Cluster cluster = round_cluster();
  const double aligned = kernel_seconds(cluster, matmul(1000, 200, 8000)) - 1e-6;
  EXPECT_NEAR(kernel_seconds(cluster, matmul(996, 200, 8000)) - 1e-6, 3 * aligned, 1e-12);
}

TEST(MatmulCost, ThinProductsAreBoundByMemory) {
  Cluster cluster = round_cluster();
  cluster.device.bfloat16_flops = 1e15;
  const double bytes = 2.0 * (8.0 * 8 + 8.0 * 80000 + 8.0 * 80000);
  EXPECT_DOUBLE_EQ(kernel_seconds(cluster, matmul(8, 80000, 8)), bytes / 5e10 + 1e-6);
}

TEST(AttentionCost, FlashComputesTheCausalShareAndScoresTheWholeSquare) {
  Cluster cluster = round_cluster();
  TracedKernel kernel;
  kernel.kind = TracedKernel::Kind::attention;
  kernel.dtype = DType::bfloat16;
  kernel.batch = 2;
  kernel.heads = 5;
  kernel.queries = kernel.seq_len = 1000;
  kernel.head_dim = 80;
  kernel.flops = 2 * 5 * 1000.0 * 1001 / 2 * 4 * 80;
  cluster.stack.attention_efficiency = 0.25;
  EXPECT_DOUBLE_EQ(kernel_seconds(cluster, kernel), kernel.flops / 2.5e11 + 1e-6);
  cluster.stack.causal_work = 1;
  EXPECT_DOUBLE_EQ(kernel_seconds(cluster, kernel), 2 * kernel.flops / 2.5e11 + 1e-6);
  cluster.stack.flash_attention = false;
  cluster.stack.score_traffic = 0;
  const double products = kernel_seconds(cluster, kernel);
  cluster.stack.score_traffic = 5;
  EXPECT_NEAR(kernel_seconds(cluster, kernel) - products, 5 * 2e7 / 5e10, 1e-12);  // 1e7 scores of 2 bytes
}

TEST(RowCost, BytesOverBandwidth) {
  Cluster cluster = round_cluster();
  cluster.stack.row_traffic = 2;
  TracedKernel kernel;
  kernel.bytes_read = 3e6;
  kernel.bytes_written = 1e6;
  EXPECT_DOUBLE_EQ(kernel_seconds(cluster, kernel), 8e6 / 5e10 + 1e-6);
}

TEST(Placement, FollowsFromTheOrderOfTheGrid) {
  const Cluster cluster = round_cluster();
  const Grid g = grid(2, 2, 8);
  EXPECT_EQ(place_group(cluster, g, {Axis::tp}).inside, (std::vector<int>{2, 2}));
  EXPECT_EQ(place_group(cluster, g, {Axis::dp}).inside, (std::vector<int>{2, 8}));
  EXPECT_EQ(place_group(cluster, g, {Axis::pp}).inside, (std::vector<int>{1, 2}));
  EXPECT_EQ(place_group(cluster, grid(2, 2, 8, "pp-tp-dp-cp-ep"), {Axis::dp}).inside, (std::vector<int>{1, 8}));
}

TEST(CollectiveCost, OneNodeIsARing) {
  const Cluster cluster = round_cluster();
  const GroupPlacement group = place_group(cluster, grid(4, 1, 1), {Axis::tp});
  // 2·3/4 of the bytes at 1e10, and 3 hops each way.
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, group, Operation::all_reduce, 1e8), 1.5e8 / 1e10 + 6e-6);
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, group, Operation::all_gather, 1e8), 0.75e8 / 1e10 + 3e-6);
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, group, Operation::reduce_scatter, 1e8), 0.75e8 / 1e10 + 3e-6);
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, group, Operation::all_to_all, 1e8), 0.75e8 / 1e10 + 3e-6);
  EXPECT_EQ(collective_seconds(cluster, place_group(cluster, grid(1, 1, 1), {Axis::tp}), Operation::all_reduce, 1e8),
            0);
}

TEST(CollectiveCost, GroupsShareTheLinksOfTheirNode) {
  const Cluster cluster = round_cluster();
  // dp beside tp 4: each of the node's four groups has one rank there and a quarter of 2 links.
  const GroupPlacement alone = place_group(cluster, grid(4, 1, 8), {Axis::dp});
  EXPECT_DOUBLE_EQ(ring_bandwidth(cluster, alone, 1e9), 0.5e9);
  // dp alone: the node's ranks are in one group, which has both links.
  const GroupPlacement whole = place_group(cluster, grid(1, 1, 32), {Axis::dp});
  EXPECT_DOUBLE_EQ(ring_bandwidth(cluster, whole, 1e9), 2e9);
  // Of the ring's 31 hops 24 are within nodes, 7 between them.
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, whole, Operation::all_gather, 32e6),
                   31e6 / 2e9 + (32 - 8) * 1e-6 + (8 - 1) * 1e-5);
  // All-to-all: each rank sends 28/32 over its own quarter of the links.
  EXPECT_DOUBLE_EQ(collective_seconds(cluster, whole, Operation::all_to_all, 32e6),
                   28e6 / 0.5e9 + 3e-6 + std::min(7.0, 3 * std::log2(8.0)) * 1e-5);
}

TEST(CollectiveCost, ShortMessagesAndReductionInTheSwitch) {
  Cluster cluster = round_cluster();
  cluster.levels[0].size = 8;
  cluster.levels[1].size = 64;
  const GroupPlacement group = place_group(cluster, grid(8, 1, 1), {Axis::tp});
  cluster.levels[0].half_bandwidth_bytes = 1e6;
  EXPECT_DOUBLE_EQ(ring_bandwidth(cluster, group, 1e6), 0.5e10);
  EXPECT_DOUBLE_EQ(ring_bandwidth(cluster, group, 3e6), 0.75e10);
  cluster.levels[0].half_bandwidth_bytes = 0;
  const double ring = collective_seconds(cluster, group, Operation::all_reduce, 1e9);
  cluster.levels[0].in_network_factor = 1.5;
  const double latency = 2 * 7e-6;
  EXPECT_NEAR(collective_seconds(cluster, group, Operation::all_reduce, 1e9) - latency, (ring - latency) / 1.5, 1e-12);
}

// What nccl-tests would print: bytes / time · factor is the ring's bandwidth for large messages.
TEST(CollectiveCost, BusBandwidthIsThatOfThePreset) {
  Cluster cluster = round_cluster();
  cluster.levels[0].efficiency = 0.8;
  const GroupPlacement group = place_group(cluster, grid(4, 1, 1), {Axis::tp});
  const double bytes = 1e12;
  EXPECT_NEAR(bytes / collective_seconds(cluster, group, Operation::all_reduce, bytes) * 2 * 3 / 4, 8e9, 1e3);
  EXPECT_NEAR(bytes / collective_seconds(cluster, group, Operation::all_gather, bytes) * 3 / 4, 8e9, 1e3);
}

TEST(TransferCost, CrossesTheOutermostLevelThatStagesLieOn) {
  const Cluster cluster = round_cluster();
  EXPECT_EQ(transfer_seconds(cluster, place_group(cluster, grid(2, 1, 4), {Axis::pp}), 1e6), 0);
  EXPECT_DOUBLE_EQ(transfer_seconds(cluster, place_group(cluster, grid(2, 2, 1), {Axis::pp}), 1e6), 1e-6 + 1e6 / 1e10);
  EXPECT_DOUBLE_EQ(transfer_seconds(cluster, place_group(cluster, grid(4, 3, 1), {Axis::pp}), 1e6), 1e-5 + 1e6 / 0.5e9);
}

}  // namespace
}  // namespace cuboid
