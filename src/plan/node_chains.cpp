#include "node_chains.h"

#include <algorithm>
#include <limits>

#include "cuboid/core/error.h"

namespace cuboid {
namespace {

// Whether a ring or chain through the members runs over paths of this bandwidth or more only; by subsets.
bool runs(const NodeKind& kind, std::span<const int> locals, bool closed, double bandwidth) {
  const auto k = static_cast<int>(locals.size());
  const auto linked = [&](int i, int j) {
    return kind.path(locals[static_cast<std::size_t>(i)], locals[static_cast<std::size_t>(j)]).bandwidth >= bandwidth;
  };
  std::vector<std::uint32_t> ends(std::size_t{1} << k);  // ends of chains through a subset
  for (int i = 0; i < k; ++i) {
    if (!closed || i == 0) ends[std::size_t{1} << i] |= 1U << i;
  }
  for (std::size_t set = 1; set < ends.size(); ++set) {
    for (int i = 0; i < k; ++i) {
      if ((ends[set] >> i & 1U) == 0) continue;
      for (int j = 0; j < k; ++j) {
        if ((set >> j & 1U) == 0 && linked(i, j)) ends[set | std::size_t{1} << j] |= 1U << j;
      }
    }
  }
  const std::uint32_t last = ends.back();
  if (!closed) return last != 0;
  for (int i = 1; i < k; ++i) {
    if ((last >> i & 1U) != 0 && linked(i, 0)) return true;
  }
  return false;
}

// Many members: to the nearest one left, from each start; the best of these.
double nearest_chain(const NodeKind& kind, std::span<const int> locals, bool closed) {
  double best = 0;
  for (std::size_t start = 0; start < std::min<std::size_t>(locals.size(), 8); ++start) {
    std::vector<int> left(locals.begin(), locals.end());
    int now = left[start];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(start));
    double slowest = std::numeric_limits<double>::infinity();
    while (!left.empty()) {
      const auto next = std::max_element(left.begin(), left.end(), [&](int x, int y) {
        return kind.path(now, x).bandwidth < kind.path(now, y).bandwidth;
      });
      slowest = std::min(slowest, kind.path(now, *next).bandwidth);
      now = *next;
      left.erase(next);
    }
    if (closed) slowest = std::min(slowest, kind.path(now, locals[start]).bandwidth);
    best = std::max(best, slowest);
  }
  return best;
}

Chain make_chain(const NodeKind& kind, std::span<const int> locals, bool closed) {
  std::vector<double> rates;
  for (int a : locals) {
    for (int b : locals) {
      if (a < b) rates.push_back(kind.path(a, b).bandwidth);
    }
  }
  std::sort(rates.begin(), rates.end());
  rates.erase(std::unique(rates.begin(), rates.end()), rates.end());
  double rate = rates.front();
  if (locals.size() == 2) {
    rate = rates.back();
  } else if (locals.size() <= 10) {
    for (double r : rates) {
      if (r > rate && runs(kind, locals, closed, r)) rate = r;
    }
  } else {
    rate = nearest_chain(kind, locals, closed);
  }
  for (int a : locals) {
    for (int b : locals) {
      if (a < b && kind.path(a, b).bandwidth == rate) return {1 / rate, kind.path(a, b).latency, a, b};
    }
  }
  contract_violation("a chain has a path", __FILE__, __LINE__, kind.name);
}

}  // namespace

NodeChains::NodeChains(const Topology& topology) : topology_(topology) {
  for (const NodeKind& kind : topology.kinds) {
    bool equal = true;
    const auto count = static_cast<int>(kind.devices.size());
    for (int a = 0; a < count && equal; ++a) {
      for (int b = 0; b < a && equal; ++b) equal = kind.path(a, b) == kind.path(1, 0);
    }
    uniform_.push_back(equal);
  }
}

Chain NodeChains::find(int kind_index, std::span<const int> locals, bool closed) {
  const NodeKind& kind = topology_.kinds[static_cast<std::size_t>(kind_index)];
  if (uniform_[static_cast<std::size_t>(kind_index)] || locals.size() == 2) {
    const Path& path = kind.path(locals[0], locals[1]);
    return {1 / path.bandwidth, path.latency, locals[0], locals[1]};
  }
  if (kind.devices.size() > 48) return make_chain(kind, locals, closed);
  std::uint64_t key = static_cast<std::uint64_t>(2 * kind_index + (closed ? 1 : 0)) << 48;
  for (int local : locals) key |= std::uint64_t{1} << local;
  const auto known = known_.find(key);
  if (known != known_.end()) return known->second;
  return known_.emplace(key, make_chain(kind, locals, closed)).first->second;
}

}  // namespace cuboid
