// Placement: costs that can be worked out by hand, and assignments against all there are.
#include "cuboid/plan/place.h"

#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "cuboid/core/error.h"
#include "cuboid/formats/cluster_file.h"
#include "cuboid/formats/topology.h"
#include "cuboid/plan/measure_comm.h"

namespace cuboid {
namespace {

// Nodes of `devices` devices with one path of this bandwidth between all, and `nics` cards of 10 GB/s for all of them.
Topology uniform(int nodes, int devices, int nics, double bandwidth) {
  Topology t;
  t.name = "uniform";
  NodeKind& kind = t.kinds.emplace_back();
  kind.name = "node";
  for (int d = 0; d < devices; ++d)
    kind.devices.push_back({"d" + std::to_string(d), TopologyDeviceKind::gpu, d, {}, "", ""});
  for (int n = 0; n < nics; ++n) kind.nics.push_back({"n" + std::to_string(n), {}, 10e9, 10e9, 0});
  for (int a = 0; a < devices; ++a) {
    for (int b = 0; b < devices; ++b)
      kind.paths.push_back(a == b ? Path{} : Path{PathKind::nvlink, 1, bandwidth, 1e-6});
    for (int n = 0; n < nics; ++n) {
      const bool near = nics == 1 || a * nics / devices == n;
      kind.nic_paths.push_back({near ? PathKind::pix : PathKind::sys, 0, 30e9, 1e-6});
    }
  }
  for (int n = 0; n < nodes; ++n) t.nodes.push_back({"node" + std::to_string(n), 0});
  if (nodes > 1) t.fabric = {{"fabric", 0, 5e-6, 0, false}};
  return t;
}

void set_path(NodeKind& kind, int a, int b, double bandwidth) {
  const auto count = kind.devices.size();
  for (auto at : {static_cast<std::size_t>(a) * count + static_cast<std::size_t>(b),
                  static_cast<std::size_t>(b) * count + static_cast<std::size_t>(a)}) {
    kind.paths[at].bandwidth = bandwidth;
  }
}

Grid grid(int tp, int dp, int pp, const char* order = "tp-dp-pp") {
  return Grid({{tp, 1, 1, dp, pp}}, order);
}

double seconds(const Topology& t, const Grid& g, const char* traffic, const std::vector<int>& devices) {
  return MappingModel(t, g, parse_traffic(traffic)).seconds(devices);
}

// 8 ranks, 1e9 bytes, 5 ms: the definitions of nccl-tests.
TEST(BusBandwidth, IsThatOfNcclTests) {
  const double algbw = 1e9 / 5e-3 / 1e9;
  EXPECT_DOUBLE_EQ(algbw, 200);
  EXPECT_DOUBLE_EQ(algbw * bus_factor(CommOperation::all_reduce, 8), 350);
  EXPECT_DOUBLE_EQ(algbw * bus_factor(CommOperation::all_gather, 8), 175);
  EXPECT_DOUBLE_EQ(algbw * bus_factor(CommOperation::reduce_scatter, 8), 175);
  EXPECT_DOUBLE_EQ(algbw * bus_factor(CommOperation::all_to_all, 8), 175);
  EXPECT_DOUBLE_EQ(algbw * bus_factor(CommOperation::broadcast, 8), 200);
}

TEST(Traffic, GoesThroughText) {
  const Traffic traffic = parse_traffic("tp=all_reduce:8388608:48,pp=send:4e6");
  EXPECT_EQ(traffic,
            (Traffic{{Axis::tp, CommOperation::all_reduce, 8388608, 48}, {Axis::pp, CommOperation::send, 4e6, 1}}));
  EXPECT_EQ(parse_traffic(to_text(traffic)), traffic);
  for (const char* bad :
       {"", "tp", "xx=send:1", "tp=mul:1", "tp=send", "tp=send:0", "tp=send:-1", "tp=send:nan", "tp=send:1:2:3"}) {
    EXPECT_THROW(parse_traffic(bad), Error) << bad;
  }
}

TEST(MappingModel, PricesWhatCanBeWorkedOut) {
  const Topology t = uniform(2, 4, 1, 100e9);
  // A pair inside a node: two steps of 1 us, and 1e9 bytes once over 100 GB/s.
  EXPECT_NEAR(seconds(t, grid(2, 1, 1), "tp=all_reduce:1e9", {0, 1}), 2e-6 + 0.01, 1e-12);
  // Across nodes: 5 us, 10 GB/s. Three such pairs share the one card.
  EXPECT_NEAR(seconds(t, grid(2, 1, 1), "tp=all_reduce:1e9", {0, 5}), 10e-6 + 0.1, 1e-12);
  EXPECT_NEAR(seconds(t, grid(2, 3, 1), "tp=all_reduce:1e9", {0, 4, 1, 5, 2, 6}), 10e-6 + 0.3, 1e-12);
  // A card a device: nothing is shared.
  EXPECT_NEAR(seconds(uniform(2, 4, 4, 100e9), grid(2, 3, 1), "tp=all_reduce:1e9", {0, 4, 1, 5, 2, 6}), 10e-6 + 0.1,
              1e-12);
  // A group of 8 over both nodes enters and leaves each once; with 4 cards the group uses all of them, and its 4
  // members inside are joined by the paths there: 2·7/8·1e9 bytes.
  EXPECT_NEAR(seconds(t, grid(8, 1, 1), "tp=all_reduce:1e9", {0, 1, 2, 3, 4, 5, 6, 7}), 30e-6 + 1.75 / 10, 1e-12);
  EXPECT_NEAR(seconds(uniform(2, 4, 4, 100e9), grid(8, 1, 1), "tp=all_reduce:1e9", {0, 1, 2, 3, 4, 5, 6, 7}),
              30e-6 + 1.75 / 40, 1e-12);
  // All to all of 4 + 4: each node sends 4·4/8 of the buffers.
  EXPECT_NEAR(seconds(t, grid(8, 1, 1), "tp=all_to_all:1e9", {0, 1, 2, 3, 4, 5, 6, 7}), 35e-6 + 2.0 / 10, 1e-12);
  // Stages 0 and 1 on one node, 2 on the other: a boundary crosses, of both chains.
  EXPECT_NEAR(seconds(t, grid(1, 2, 3), "pp=send:1e9", {0, 1, 2, 3, 4, 5}), 5e-6 + 2.0 / 10, 1e-12);
  // Axes follow each other; what has no traffic costs nothing.
  EXPECT_NEAR(seconds(t, grid(2, 2, 1), "tp=all_reduce:1e9", {0, 1, 4, 5}), 2e-6 + 0.01, 1e-12);
}

TEST(MappingModel, KnowsWhichRingIsFastest) {
  Topology t = uniform(1, 4, 1, 5e9);
  NodeKind& kind = t.kinds[0];
  // A ring 0-2-1-3-0 of fast paths, the others slow.
  for (auto [a, b] : {std::pair{0, 2}, {2, 1}, {1, 3}, {3, 0}}) set_path(kind, a, b, 50e9);
  EXPECT_NEAR(seconds(t, grid(4, 1, 1), "tp=broadcast:1e9", {0, 1, 2, 3}), 2e-6 + 1.0 / 50, 1e-12);
  set_path(kind, 3, 0, 5e9);  // now a chain: the ring is closed over a slow path
  EXPECT_NEAR(seconds(t, grid(4, 1, 1), "tp=broadcast:1e9", {0, 1, 2, 3}), 2e-6 + 1.0 / 5, 1e-12);
  const auto cost =
      MappingModel(t, grid(4, 1, 1), parse_traffic("tp=broadcast:1e9")).cost(std::vector<int>{0, 1, 2, 3});
  EXPECT_EQ(cost.axes.at(0).slowest.path, "nvlink");
  EXPECT_DOUBLE_EQ(cost.axes.at(0).slowest.bandwidth, 5e9);
}

TEST(MappingModel, CountsRailsAndUplinks) {
  Topology t = uniform(4, 2, 2, 100e9);
  t.fabric = {{"rail", 2, 1e-6, 0, true}, {"leaf", 2, 4e-6, 12e9, false}, {"spine", 0, 9e-6, 0, false}};
  const auto broadcast = [&](const std::vector<int>& devices) {
    return seconds(t, grid(2, 1, 1), "tp=broadcast:1e9", devices);
  };
  EXPECT_NEAR(broadcast({0, 2}), 1e-6 + 0.1, 1e-12);  // one rail
  EXPECT_NEAR(broadcast({0, 3}), 4e-6 + 0.1, 1e-12);  // another rail of the same leaf
  EXPECT_NEAR(broadcast({0, 4}), 9e-6 + 0.1, 1e-12);  // another leaf
  // Two groups through one leaf's uplink of 12 GB/s.
  EXPECT_NEAR(seconds(t, grid(2, 2, 1), "tp=broadcast:1e9", {0, 4, 1, 5}), 9e-6 + 2.0 / 12, 1e-12);
  const auto cost =
      MappingModel(t, grid(2, 2, 1), parse_traffic("tp=broadcast:1e9")).cost(std::vector<int>{0, 4, 1, 5});
  EXPECT_EQ(cost.axes.at(0).slowest.path, "spine");
  EXPECT_NEAR(cost.axes.at(0).slowest.bandwidth, 6e9, 1);
}

TEST(MappingModel, RefusesWhatItCannotPrice) {
  EXPECT_THROW(MappingModel(uniform(1, 2, 1, 1e9), grid(3, 1, 1), {}), Error);
  EXPECT_THROW(MappingModel(uniform(2, 2, 0, 1e9), grid(3, 1, 1), {}), Error);
  Topology silent = uniform(2, 2, 1, 1e9);
  silent.fabric.clear();
  EXPECT_THROW(MappingModel(silent, grid(3, 1, 1), {}), Error);
  EXPECT_THROW(MappingModel(uniform(1, 2, 1, 0), grid(2, 1, 1), {}), Error);
}

// Two hosts of two ranks. Times that are made of a latency and a bandwidth a level give these back; two groups share
// the card. What threads send is handed over, so its time says nothing of memory; what processes send does.
TEST(LevelFit, FindsWhatTimesWereMadeOf) {
  constexpr double kHost[] = {40e-6, 2e9};
  constexpr double kNetwork[] = {90e-6, 0.1e9};
  const auto fits_of = [&](int ranks_per_process) {
    HostedRanks ranks = topology_of_hosts({"a", "a", "b", "b"}, ranks_per_process);
    GridSamples measured{grid(2, 2, 1), {}};
    for (const double bytes : {4096.0, 65536.0, 786432.0}) {
      const double inside = 2 * kHost[0] + bytes / kHost[1];
      const double across = 2 * kNetwork[0] + 2 * bytes / kNetwork[1];
      measured.samples.push_back({{Axis::tp}, CommOperation::all_reduce, 2, bytes, {.mean = inside}, 1});
      measured.samples.push_back({{Axis::dp}, CommOperation::all_reduce, 2, bytes, {.mean = across}, 1});
      measured.samples.push_back({{Axis::tp}, CommOperation::send, 2, bytes, {.mean = 1e-6}, 1});
      measured.samples.push_back({{Axis::tp, Axis::dp}, CommOperation::all_reduce, 2, bytes, {.mean = 1}, 1});
    }
    return fit_levels(ranks, {measured});
  };
  const auto threads = fits_of(2);
  ASSERT_EQ(threads.size(), 2U);
  EXPECT_NEAR(threads[0].latency, kHost[0], 1e-9 * kHost[0]);
  EXPECT_NEAR(threads[0].bandwidth, kHost[1], 1e-9 * kHost[1]);
  EXPECT_EQ(threads[0].samples, 3);
  EXPECT_NEAR(threads[1].latency, kNetwork[0], 1e-9 * kNetwork[0]);
  EXPECT_NEAR(threads[1].bandwidth, kNetwork[1], 1e-9 * kNetwork[1]);
  EXPECT_EQ(fits_of(1)[0].samples, 6);
}

TEST(Placement, UncrossesPairs) {
  Topology t = uniform(1, 4, 1, 5e9);
  set_path(t.kinds[0], 0, 2, 50e9);
  set_path(t.kinds[0], 1, 3, 50e9);
  const auto placed = place_ranks(t, grid(2, 2, 1), parse_traffic("tp=all_reduce:1e9:10,dp=all_reduce:1e9"));
  EXPECT_TRUE(placed.exact);
  EXPECT_EQ(placed.cost.axes.at(0).slowest.bandwidth, 50e9);
  EXPECT_EQ(std::abs(placed.device_of_rank[0] - placed.device_of_rank[1]), 2);
  EXPECT_EQ(placed.alternatives.size(), 2U);
}

TEST(Placement, TakesTheNearPairOfPcieGpus) {
  const Topology t = read_topology(CUBOID_TEST_DATA "/cases/topo/pcie-only-4gpu-olddriver.txt");
  const auto placed = place_ranks(t, grid(2, 1, 1), parse_traffic("tp=all_reduce:1e9"));
  EXPECT_EQ(placed.device_of_rank, (std::vector<int>{0, 1}));
}

TEST(Placement, FillsUnevenNodes) {
  Topology t = uniform(1, 3, 1, 100e9);
  t.nodes.push_back({"second", 1});
  t.nodes.push_back({"third", 1});
  t.kinds.push_back(uniform(1, 2, 1, 100e9).kinds[0]);
  t.fabric = {{"fabric", 0, 5e-6, 0, false}};
  // 2+2+2 of 3+2+2: every tensor group stays inside a node.
  const auto placed = place_ranks(t, grid(2, 3, 1), parse_traffic("tp=all_reduce:1e9,dp=all_reduce:1e6"));
  EXPECT_NE(placed.cost.axes.at(0).slowest.path, "fabric");
  for (int rank = 0; rank < 6; rank += 2) {
    const auto at = places(t);
    EXPECT_EQ(at[static_cast<std::size_t>(placed.device_of_rank[static_cast<std::size_t>(rank)])].node,
              at[static_cast<std::size_t>(placed.device_of_rank[static_cast<std::size_t>(rank) + 1])].node);
  }
}

// Up to 8 devices on one or two levels, pairs crossed at random, unlike cards, traffic of all kinds.
Topology random_topology(std::mt19937& random) {
  const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  const int nodes = 1 + below(2);
  const int devices = nodes == 1 ? 4 + below(5) : 2 + below(3);
  Topology t = uniform(nodes, devices, 1 + below(2), 1e9 * (5 + below(20)));
  NodeKind& kind = t.kinds[0];
  for (int i = 0; i < devices; ++i) {
    const int a = below(static_cast<std::size_t>(devices));
    const int b = below(static_cast<std::size_t>(devices));
    if (a != b) set_path(kind, a, b, 1e9 * (20 + below(80)));
  }
  for (auto& nic : kind.nics) nic.bandwidth = 1e9 * (2 + below(20));
  return t;
}

TEST(Placement, IsNeverFarFromTheBestOfAll) {
  std::mt19937 random(20);
  int exact = 0;
  double worst = 1;
  for (int trial = 0; trial < 200; ++trial) {
    const Topology t = random_topology(random);
    const int devices = t.devices();
    std::vector<Grid> grids;
    for (auto [tp, dp, pp] : {std::tuple{2, 2, 2}, {2, 3, 1}, {2, 2, 1}, {1, 2, 3}, {4, 2, 1}, {2, 1, 2}, {3, 1, 2}}) {
      // All assignments of 8 ranks are many: in every fourth trial only.
      if (tp * dp * pp <= devices && (tp * dp * pp < 8 || trial % 8 == 0)) grids.push_back(grid(tp, dp, pp));
    }
    const Grid& g = grids[random() % grids.size()];
    Traffic traffic;
    for (Axis axis : kAxes) {
      if (g.degree(axis) < 2) continue;
      traffic.push_back({axis, axis == Axis::pp ? CommOperation::send : static_cast<CommOperation>(random() % 5),
                         std::pow(10.0, 5.0 + static_cast<double>(random() % 4)),
                         1.0 + static_cast<double>(random() % 9)});
    }
    MappingModel model(t, g, traffic);
    double best = INFINITY;
    std::vector<int> order(static_cast<std::size_t>(devices));
    std::iota(order.begin(), order.end(), 0);
    const auto world = static_cast<std::size_t>(g.world());
    const std::function<void(std::size_t)> try_all = [&](std::size_t rank) {
      if (rank == world) {
        best = std::min(best, model.seconds(std::span(order).first(world)));
        return;
      }
      for (std::size_t i = rank; i < order.size(); ++i) {
        std::swap(order[rank], order[i]);
        try_all(rank + 1);
        std::swap(order[rank], order[i]);
      }
    };
    try_all(0);
    EXPECT_LE(model.lower_bound(), best * (1 + 1e-12)) << trial;
    // The heuristic alone, though it would not be asked for so few devices.
    const auto searched = place_ranks(t, g, traffic, {.exhaustive_up_to = 0, .effort = 40'000});
    EXPECT_FALSE(searched.exact);
    EXPECT_LE(searched.cost.seconds, best * 1.05) << "trial " << trial << ": " << to_text(traffic);
    worst = std::max(worst, searched.cost.seconds / best);
    if (trial % 10 != 0) continue;
    const auto placed = place_ranks(t, g, traffic);
    EXPECT_LE(placed.cost.seconds, best * (placed.exact ? 1 + 1e-12 : 1.05)) << trial;
    exact += placed.exact ? 1 : 0;
  }
  EXPECT_GT(exact, 10);
  RecordProperty("worst", std::to_string(worst));
}

TEST(Placement, PlacesAClusterAtOnce) {
  Cluster cluster = load_cluster("dgx-a100");
  cluster.levels.back().efficiency = 0.8;  // whatever the preset was last fitted to
  const Topology t = topology_of(cluster, 4096);
  const Traffic traffic = parse_traffic("tp=all_reduce:5e7:384,pp=send:5e7:64,dp=all_reduce:1e9");
  for (const char* order : {"tp-dp-pp", "pp-dp-tp"}) {
    const auto start = std::chrono::steady_clock::now();
    const auto placed = place_ranks(t, grid(8, 64, 8, order), traffic);
    const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    EXPECT_LT(took, 1.0);
    EXPECT_EQ(placed.cost.axes.at(0).slowest.path, "nvlink");  // tensor groups inside nodes, whatever the grid's order
    EXPECT_LE(placed.lower_bound, placed.cost.seconds);
    EXPECT_LT(placed.cost.seconds, 1.3 * placed.lower_bound);
    EXPECT_EQ(placed.alternatives.size(), 6U);
    RecordProperty("seconds", std::to_string(took));
  }
}

}  // namespace
}  // namespace cuboid
