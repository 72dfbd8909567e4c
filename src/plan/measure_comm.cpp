#include "cuboid/plan/measure_comm.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"
#include "cuboid/runtime/stopwatch.h"

namespace cuboid {
namespace {

constexpr int kLeastRounds = 5;
constexpr int kLeastRows = 3;
constexpr int kMostRounds = 20'000;
constexpr int kWarmUp = 2;
constexpr int kTag = 7;

// Element i of member m's input. Small whole numbers: their sums over any number of ranks here are exact.
float input_of(std::int64_t i, int member) {
  return static_cast<float>(i % 61 + 3 * (member % 97));
}

/// An operation with its buffers on one axis.
class Exercise {
 public:
  Exercise(Communicator& comm, const Device& device, CommOperation operation, std::int64_t bytes)
      : comm_(comm), device_(device), operation_(operation) {
    const std::int64_t elements = std::max<std::int64_t>(bytes / 4, 1);
    const std::int64_t n = comm.size();
    part_ = std::max<std::int64_t>(elements / n, 1);
    const bool parts = operation == CommOperation::reduce_scatter || operation == CommOperation::all_gather ||
                       operation == CommOperation::all_to_all;
    whole_ = parts ? part_ * n : elements;
    const auto make = [&](std::int64_t count) {
      return device.empty({count}, DType::float32, Category::communication);
    };
    in_ = make(operation == CommOperation::all_gather ? part_ : whole_);
    if (operation == CommOperation::send) {
      std::vector<int> members(static_cast<std::size_t>(comm.size()));
      std::iota(members.begin(), members.end(), 0);
      channels_ = std::make_unique<StageChannels>(comm, members);
      if (comm.rank() + 1 < comm.size()) up_ = make(whole_);
    } else if (operation != CommOperation::broadcast) {
      out_ = make(operation == CommOperation::reduce_scatter ? part_ : whole_);
    }
  }

  double bytes() const { return 4.0 * static_cast<double>(whole_); }

  Work start() {
    switch (operation_) {
      case CommOperation::all_reduce:
        return comm_.all_reduce(in_, out_, ReduceOp::sum);
      case CommOperation::reduce_scatter:
        return comm_.reduce_scatter(in_, out_, ReduceOp::sum);
      case CommOperation::all_gather:
        return comm_.all_gather(in_, out_);
      case CommOperation::all_to_all:
        return comm_.all_to_all(in_, out_);
      case CommOperation::broadcast:
        return comm_.broadcast(in_, 0);
      case CommOperation::send:
        break;
    }
    // To the next member, and what it has got back again: buffers are handed over, as between stages.
    if (up_.defined()) channels_->send(std::move(up_), comm_.rank() + 1, kTag).wait();
    return Work([this] {
      const Shape shape({whole_});
      if (comm_.rank() > 0) {
        Tensor got = channels_->recv(shape, DType::float32, comm_.rank() - 1, kTag).wait();
        channels_->send(std::move(got), comm_.rank() - 1, kTag).wait();
      }
      if (comm_.rank() + 1 < comm_.size()) up_ = channels_->recv(shape, DType::float32, comm_.rank() + 1, kTag).wait();
    });
  }

  /// Runs once with known numbers. @return the first wrong element of the result; -1: none
  std::int64_t check() {
    const int rank = comm_.rank();
    if (operation_ == CommOperation::send) {
      const auto mine = [&](std::int64_t i) { return input_of(i, rank); };
      if (up_.defined()) fill(up_, mine);
      start().wait();
      return up_.defined() ? wrong(up_, mine) : -1;
    }
    const std::int64_t offset = operation_ == CommOperation::all_gather ? part_ * rank : 0;
    fill(in_, [&](std::int64_t i) { return input_of(offset + i, rank); });
    start().wait();
    const auto sum = [&](std::int64_t i) {
      float total = 0;
      for (int m = 0; m < comm_.size(); ++m) total += input_of(i, m);
      return total;
    };
    switch (operation_) {
      case CommOperation::all_reduce:
        return wrong(out_, sum);
      case CommOperation::reduce_scatter:
        return wrong(out_, [&](std::int64_t i) { return sum(part_ * rank + i); });
      case CommOperation::all_gather:
        return wrong(out_, [&](std::int64_t i) { return input_of(i, static_cast<int>(i / part_)); });
      case CommOperation::all_to_all:
        return wrong(out_,
                     [&](std::int64_t i) { return input_of(part_ * rank + i % part_, static_cast<int>(i / part_)); });
      case CommOperation::broadcast:
        return wrong(in_, [](std::int64_t i) { return input_of(i, 0); });
      case CommOperation::send:
        break;
    }
    return -1;
  }

 private:
  template <typename Number>
  void fill(const Tensor& tensor, const Number& number) const {
    std::vector<float> numbers(static_cast<std::size_t>(tensor.elements()));
    for (std::int64_t i = 0; i < tensor.elements(); ++i) numbers[static_cast<std::size_t>(i)] = number(i);
    device_.write(numbers.data(), tensor);
  }
  template <typename Expected>
  std::int64_t wrong(const Tensor& tensor, const Expected& expected) const {
    const Tensor here = device_.to_host(tensor);
    const float* data = here.data<float>();
    for (std::int64_t i = 0; i < tensor.elements(); ++i) {
      if (data[i] != expected(i)) return i;
    }
    return -1;
  }

  Communicator& comm_;
  const Device& device_;
  CommOperation operation_;
  std::int64_t part_ = 1, whole_ = 1;
  std::unique_ptr<StageChannels> channels_;  // of sends: as between stages, one for each direction
  Tensor in_, out_, up_;
};

double largest(Communicator& world, const Device& device, double value) {
  const Tensor one = device.host().empty({1}, DType::float64, Category::communication);
  one.data<double>()[0] = value;
  all_reduce_in_place(world, one, ReduceOp::max);
  return one.data<double>()[0];
}

}  // namespace

namespace {

// Of this rank's times those of the slowest rank, sorted.
void summarize(Communicator& world, const Tensor& times, RoundTimes& result) {
  const std::int64_t count = times.elements();
  all_reduce_in_place(world, times, ReduceOp::max);
  double* taken = times.data<double>();
  std::sort(taken, taken + count);
  result.p50 = taken[count / 2];
  result.p99 = taken[std::min(count - 1, count * 99 / 100)];
}

}  // namespace

RoundTimes time_rounds(Communicator& world, const Device& device, const std::function<void()>& operation,
                       double seconds) {
  const auto run = [&](int rounds) {
    Stopwatch watch(device, rounds + 1);
    device.synchronize();
    world.barrier();
    watch.lap();
    for (int i = 0; i < rounds; ++i) {
      operation();
      watch.lap();
    }
    return watch.seconds();
  };
  const auto mean = [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  };
  const double once = largest(world, device, mean(run(kWarmUp)));
  RoundTimes result;
  result.rounds =
      static_cast<int>(std::clamp(seconds / std::max(once, 1e-7), double{kLeastRounds}, double{kMostRounds}));
  const std::vector<double> measured = run(result.rounds);
  const Tensor times = device.host().empty({result.rounds}, DType::float64, Category::communication);
  std::copy(measured.begin(), measured.end(), times.data<double>());
  result.mean = largest(world, device, mean(measured));
  summarize(world, times, result);
  return result;
}

RoundTimes time_rows(Communicator& world, const Device& device, const std::function<void()>& operation, int in_a_row,
                     double seconds) {
  const auto row = [&] {
    Stopwatch watch(device, 2);
    device.synchronize();
    world.barrier();
    watch.lap();
    for (int i = 0; i < in_a_row; ++i) operation();
    watch.lap();
    return watch.seconds().front() / in_a_row;
  };
  const double once = largest(world, device, row());
  const double fitting = seconds / (std::max(once, 1e-7) * in_a_row);
  const auto rows = static_cast<int>(std::clamp(fitting, double{kLeastRows}, double{kMostRounds}));
  const Tensor times = device.host().empty({rows}, DType::float64, Category::communication);
  RoundTimes result;
  result.rounds = rows * in_a_row;
  for (int i = 0; i < rows; ++i) times.data<double>()[i] = row();
  summarize(world, times, result);
  double sum = 0;
  for (int i = 0; i < rows; ++i) sum += times.data<double>()[i];
  result.mean = sum / rows;
  return result;
}

std::vector<CommSample> measure_comm(const Groups& groups, const Device& device, const CommPlan& plan) {
  std::vector<CommSample> samples;
  for (const auto& axes : plan.axes) {
    for (CommOperation operation : plan.operations) {
      for (std::int64_t size : plan.sizes) {
        std::vector<std::unique_ptr<Exercise>> exercises;
        for (Axis axis : axes)
          exercises.push_back(std::make_unique<Exercise>(groups.axis(axis), device, operation, size));
        for (std::size_t a = 0; a < axes.size(); ++a) {
          const std::int64_t wrong = exercises[a]->check();
          if (wrong < 0) continue;
          throw Error(ErrorKind::failed, fmt::format("{} of {} bytes along {}: element {} is wrong", name_of(operation),
                                                     exercises[a]->bytes(), name_of(axes[a]), wrong));
        }
        const auto round = [&] {
          std::vector<Work> works;
          for (auto& exercise : exercises) works.push_back(exercise->start());
          for (Work& work : works) work.wait();
        };
        CommSample sample{axes, operation, groups.axis(axes.front()).size(), exercises.front()->bytes(), {}, 1};
        const auto row = plan.in_a_row.find({axes.front(), operation, size});
        sample.times = axes.size() == 1 && row != plan.in_a_row.end()
                           ? time_rows(groups.world(), device, round, row->second, plan.seconds)
                           : time_rounds(groups.world(), device, round, plan.seconds);
        if (operation == CommOperation::send) {  // there and back
          for (double* time : {&sample.times.mean, &sample.times.p50, &sample.times.p99}) *time /= 2;
        }
        samples.push_back(sample);
      }
    }
  }
  return samples;
}

std::vector<PairSample> measure_pairs(Communicator& world, const Device& device, std::int64_t bytes, double seconds) {
  std::vector<PairSample> samples;
  for (int a = 0; a < world.size(); ++a) {
    for (int b = a + 1; b < world.size(); ++b) {
      PairSample sample{a, b, 0, 0};
      // Channels of one direction each, as between stages.
      const bool plays = world.rank() == a || world.rank() == b;
      const auto pair = world.split(plays ? 0 : -1, world.rank(), fmt::format("ranks {} and {}", a, b));
      const auto channels = plays ? std::make_unique<StageChannels>(*pair, std::vector<int>{0, 1}) : nullptr;
      for (const std::int64_t size : {std::int64_t{4}, bytes}) {
        const Shape shape({size / 4});
        Tensor ball;
        if (world.rank() == a) ball = device.zeros(shape, DType::float32, Category::communication);
        const auto there_and_back = [&] {
          if (world.rank() == a) {
            channels->send(std::move(ball), 1, kTag).wait();
            ball = channels->recv(shape, DType::float32, 1, kTag).wait();
          } else if (world.rank() == b) {
            channels->send(channels->recv(shape, DType::float32, 0, kTag).wait(), 0, kTag).wait();
          }
        };
        const double one_way = time_rounds(world, device, there_and_back, seconds).p50 / 2;
        (size == 4 ? sample.latency : sample.bandwidth) = size == 4 ? one_way : static_cast<double>(size) / one_way;
      }
      samples.push_back(sample);
    }
  }
  return samples;
}

HostedRanks topology_of_hosts(const std::vector<std::string>& host_of_rank, int ranks_per_process) {
  std::vector<std::string> hosts;
  std::vector<int> counts;
  for (const auto& host : host_of_rank) {
    const auto known = std::find(hosts.begin(), hosts.end(), host);
    if (known == hosts.end()) {
      hosts.push_back(host);
      counts.push_back(1);
    } else {
      ++counts[static_cast<std::size_t>(known - hosts.begin())];
    }
  }
  Topology topology;
  topology.name = join(hosts, "+");
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const int count = counts[h];
    auto kind = std::find_if(topology.kinds.begin(), topology.kinds.end(),
                             [&](const NodeKind& k) { return k.devices.size() == static_cast<std::size_t>(count); });
    if (kind == topology.kinds.end()) {
      NodeKind made;
      made.name = fmt::format("host of {}", count);
      for (int d = 0; d < count; ++d) {
        made.devices.push_back({fmt::format("process{}", d), TopologyDeviceKind::core, d, std::nullopt, "", ""});
        for (int e = 0; e < count; ++e) made.paths.push_back(d == e ? Path{} : Path{PathKind::node, 0, 1, 1});
        made.nic_paths.push_back({PathKind::node, 0, 1, 1});
      }
      made.nics.push_back({"network", std::nullopt, 1, 1, 0});
      kind = topology.kinds.insert(topology.kinds.end(), std::move(made));
    }
    topology.nodes.push_back({hosts[h], static_cast<int>(kind - topology.kinds.begin())});
  }
  if (hosts.size() > 1) topology.fabric.push_back({"network", 0, 1, 0, false});
  // Devices are counted host by host, ranks as they come.
  std::vector<int> next(hosts.size(), 0);
  for (std::size_t h = 1; h < hosts.size(); ++h) next[h] = next[h - 1] + counts[h - 1];
  HostedRanks ranks{std::move(topology), {}, ranks_per_process};
  for (const auto& host : host_of_rank) {
    ranks.device_of_rank.push_back(
        next[static_cast<std::size_t>(std::find(hosts.begin(), hosts.end(), host) - hosts.begin())]++);
  }
  return ranks;
}

namespace {

struct Level {
  double latency = 0;
  double bandwidth = 1e30;
};

void set_levels(Topology& topology, Level host, Level network) {
  for (NodeKind& kind : topology.kinds) {
    for (Path& path : kind.paths) {
      if (path.kind == PathKind::same) continue;
      path.bandwidth = host.bandwidth;
      path.latency = host.latency;
    }
    for (Path& path : kind.nic_paths) {
      path.bandwidth = network.bandwidth;
      path.latency = 0;
    }
    for (TopologyNic& nic : kind.nics) nic.bandwidth = nic.wire_bandwidth = network.bandwidth;
  }
  for (FabricLevel& level : topology.fabric) level.latency = network.latency;
}

// time = steps · latency + volume / bandwidth.
struct Equation {
  double steps = 0;
  double volume = 0;
  double seconds = 0;
  double bytes = 0;
  double weight = 1;
};

LevelFit solve(const std::string& name, const std::vector<Equation>& equations) {
  // Relative errors: every equation divided by its time.
  double aa = 0, ab = 0, bb = 0, ac = 0, bc = 0;
  for (const Equation& e : equations) {
    const double a = e.steps / e.seconds;
    const double b = e.volume / e.seconds;
    aa += e.weight * a * a;
    ab += e.weight * a * b;
    bb += e.weight * b * b;
    ac += e.weight * a;
    bc += e.weight * b;
  }
  const double determinant = aa * bb - ab * ab;
  double latency = determinant > 1e-12 * aa * bb ? (bb * ac - ab * bc) / determinant : 0;
  double per_byte = determinant > 1e-12 * aa * bb ? (aa * bc - ab * ac) / determinant : bc / bb;
  // Neither is negative. No latency: bandwidth alone explains the times. No time a byte (a disturbed machine): the
  // largest messages say the bandwidth, what is left over is latency.
  if (latency < 0) {
    latency = 0;
    per_byte = bc / bb;
  }
  if (per_byte <= 0) {
    const auto largest_first = [](const Equation& x, const Equation& y) { return x.volume > y.volume; };
    const Equation& large = *std::min_element(equations.begin(), equations.end(), largest_first);
    per_byte = large.seconds / large.volume;
    double sum = 0;
    double steps = 0;
    for (const Equation& e : equations) {
      sum += std::max(0.0, e.seconds - e.volume * per_byte);
      steps += e.steps;
    }
    latency = sum / steps;
  }
  LevelFit fit{name, latency, 1 / per_byte, static_cast<int>(equations.size()), 0, 0, {}};
  double mean_log = 0;
  for (const Equation& e : equations) mean_log += std::log(e.seconds) / static_cast<double>(equations.size());
  double around_mean = 0;
  double around_fit = 0;
  std::vector<std::pair<double, std::vector<double>>> by_size;
  for (const Equation& e : equations) {
    const double predicted = e.steps * latency + e.volume * per_byte;
    around_mean += std::pow(std::log(e.seconds) - mean_log, 2);
    around_fit += std::pow(std::log(e.seconds) - std::log(predicted), 2);
    const double error = predicted / e.seconds - 1;
    fit.largest_error = std::max(fit.largest_error, std::abs(error));
    auto known = std::find_if(by_size.begin(), by_size.end(), [&](const auto& s) { return s.first == e.bytes; });
    if (known == by_size.end()) known = by_size.insert(by_size.end(), {e.bytes, {}});
    known->second.push_back(error);
  }
  fit.r_squared = around_mean > 0 ? 1 - around_fit / around_mean : 1;
  std::sort(by_size.begin(), by_size.end());
  for (const auto& [bytes, errors] : by_size) {
    double sum = 0;
    for (double e : errors) sum += e;
    fit.error_by_size.emplace_back(bytes, sum / static_cast<double>(errors.size()));
  }
  return fit;
}

// Whether all neighbours along the axis are threads of one process.
bool within_processes(const Grid& grid, Axis axis, const HostedRanks& ranks) {
  for (const auto& group : grid.groups(axis)) {
    for (int rank : group) {
      if (rank / ranks.ranks_per_process != group.front() / ranks.ranks_per_process) return false;
    }
  }
  return true;
}

}  // namespace

std::vector<LevelFit> fit_levels(HostedRanks& ranks, const std::vector<GridSamples>& measured) {
  Topology& topology = ranks.topology;
  std::vector<Equation> host;
  std::vector<Equation> network;
  Topology probe = topology;
  for (const auto& [grid, samples] : measured) {
    for (const CommSample& sample : samples) {
      if (sample.axes.size() != 1 || sample.ranks < 2) continue;
      const Traffic traffic = {{sample.axes.front(), sample.operation, sample.bytes, 1}};
      const auto seconds = [&](Level inner, Level outer) {
        set_levels(probe, inner, outer);
        return MappingModel(probe, grid, traffic).seconds(ranks.device_of_rank);
      };
      // With one parameter at a time the model's time is that parameter's coefficient.
      const double host_volume = seconds({0, 1}, {0, 1e30});
      const double network_volume = seconds({0, 1e30}, {0, 1});
      const bool crosses = network_volume > 1e-12 * sample.bytes;
      if (sample.operation == CommOperation::send && within_processes(grid, sample.axes.front(), ranks)) continue;
      const double steps = crosses ? seconds({0, 1e30}, {1, 1e30}) : seconds({1, 1e30}, {0, 1e30});
      (crosses ? network : host)
          .push_back({steps, crosses ? network_volume : host_volume, sample.times.mean, sample.bytes, sample.weight});
    }
  }
  std::vector<LevelFit> fits;
  if (!host.empty()) fits.push_back(solve("host", host));
  if (!network.empty()) fits.push_back(solve("network", network));
  // A level that no sample shows costs as much as the other: nothing is known of it.
  Level inner;
  Level outer;
  for (const LevelFit& fit : fits) (fit.level == "host" ? inner : outer) = {fit.latency, fit.bandwidth};
  if (host.empty()) inner = outer;
  if (network.empty()) outer = inner;
  set_levels(topology, inner, outer);
  if (!fits.empty() && host.empty())
    topology.notes.emplace_back("no axis stayed inside a host: its numbers are the network's");
  if (!fits.empty() && network.empty() && topology.nodes.size() > 1) {
    topology.notes.emplace_back("no axis crossed the network: its numbers are the host's");
  }
  return fits;
}

void take_levels(HostedRanks& ranks, const Cluster& cluster) {
  if (cluster.levels.empty() || (ranks.topology.nodes.size() > 1 && cluster.levels.size() < 2)) {
    throw Error(ErrorKind::request, fmt::format("the cluster {} has {} levels, but there are {} hosts", cluster.name,
                                                cluster.levels.size(), ranks.topology.nodes.size()));
  }
  const auto of = [](const ClusterLevel& level) {
    return Level{level.latency, level.links * level.link_bandwidth * level.efficiency};
  };
  set_levels(ranks.topology, of(cluster.levels.front()),
             of(cluster.levels.size() > 1 ? cluster.levels[1] : cluster.levels.front()));
}

}  // namespace cuboid
