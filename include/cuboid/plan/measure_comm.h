// Communication as it is, on the very communicators that training uses: every collective along every axis of a grid, on
// all groups of the axis at once, checked and timed; messages between all pairs of ranks; and the latencies and
// bandwidths of levels that explain the times.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cuboid/parallel/groups.h"
#include "cuboid/plan/place.h"
#include "cuboid/value/traffic.h"

namespace cuboid {

/// Times of rounds. A round's time is that of its slowest rank.
struct RoundTimes {
  int rounds = 0;
  double mean = 0;
  double p50 = 0;
  double p99 = 0;
};

/// Times an operation on all ranks of `world` together: some rounds to warm up, then as many as fit into the time, at
/// least 5. Nothing but reading the clock comes between two rounds. The same result on every rank.
/// @param operation  one round on this rank, to its end
RoundTimes time_rounds(Communicator& world, const Device& device, const std::function<void()>& operation,
                       double seconds);

/// Times an operation as a step does it: so many rounds in a row, which all ranks begin together, over and over, at
/// least 3 times. The times of a round are a row's, divided by its rounds.
RoundTimes time_rows(Communicator& world, const Device& device, const std::function<void()>& operation, int in_a_row,
                     double seconds);

/// What to measure.
struct CommPlan {
  std::vector<std::vector<Axis>> axes;  ///< each alone, or several of which operations run at the same time
  std::vector<CommOperation> operations;
  std::vector<std::int64_t> sizes;  ///< bytes, as nccl-tests counts them
  double seconds = 0.2;             ///< of each measurement
  /// Rounds that an axis alone has in a row, by operation and bytes (time_rows); not listed: without a pause.
  std::map<std::tuple<Axis, CommOperation, std::int64_t>, int> in_a_row = {};
};

struct CommSample {
  std::vector<Axis> axes;
  CommOperation operation = CommOperation::all_reduce;
  int ranks = 1;     ///< of a group of the first axis
  double bytes = 0;  ///< what was sent: the size asked for, rounded to whole elements a member
  RoundTimes times;
  double weight = 1;                                                       ///< in fit_levels
  double algbw() const { return bytes / times.p50; }                       ///< bytes a second
  double busbw() const { return algbw() * bus_factor(operation, ranks); }  ///< as nccl-tests, of the first axis
};

/// Collective over groups.world(). Every operation's result is compared with what it must be, before it is timed. A
/// send goes to the next member and back again on all pairs of neighbours; its time is that of one direction.
/// @throws Error{failed} naming operation, axis, size and element of a wrong result
std::vector<CommSample> measure_comm(const Groups& groups, const Device& device, const CommPlan& plan);

/// A pair of ranks with all others at rest.
struct PairSample {
  int from = 0, to = 0;
  double latency = 0;    ///< seconds of a message of 4 bytes, one way
  double bandwidth = 0;  ///< bytes a second of a large message, one way
};
/// All pairs from < to, one after the other. @param bytes  of the large message
std::vector<PairSample> measure_pairs(Communicator& world, const Device& device, std::int64_t bytes, double seconds);

/// Ranks of a job as a topology: a node a host, a device a rank, one card a host, numbers still to be fitted (1).
struct HostedRanks {
  Topology topology;
  std::vector<int> device_of_rank;
  int ranks_per_process = 1;  ///< ranks that are threads of one process: what they send is handed over
};
/// @pre a process's ranks follow each other
HostedRanks topology_of_hosts(const std::vector<std::string>& host_of_rank, int ranks_per_process);

/// Latency and bandwidth of a level.
struct LevelFit {
  std::string level;  ///< "host" or "network"
  double latency = 0;
  double bandwidth = 0;
  int samples = 0;
  double r_squared = 0;                                  ///< of the logarithms of times
  double largest_error = 0;                              ///< relative, over the samples
  std::vector<std::pair<double, double>> error_by_size;  ///< bytes; mean relative error of prediction, signed
};

/// Samples of a grid, whose ranks are the job's.
struct GridSamples {
  Grid grid;
  std::vector<CommSample> samples;
};

/// Least squares of relative errors of mean times (what a link carries for a while, not in its first burst) over the
/// samples in which a level is the slowest, with the coefficients that the model of place.h gives each sample. Left out
/// are samples of several axes at once, and sends between threads, which move nothing.
/// @return the levels that the samples show; the topology of `ranks` gets their numbers, and a note where one is not
/// shown
std::vector<LevelFit> fit_levels(HostedRanks& ranks, const std::vector<GridSamples>& measured);

/// The numbers of a cluster's first two levels instead: inside a host, and between hosts.
/// @throws Error{request} if there are several hosts but the cluster has one level
void take_levels(HostedRanks& ranks, const Cluster& cluster);

}  // namespace cuboid
