#include "cuboid/plan/place.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

namespace cuboid {
namespace {

// On so many devices single ranks are exchanged.
constexpr std::size_t kExchanged = 128;

// A digit of a rank's number: so many values of an axis's coordinate, `stride` apart.
struct Digit {
  Axis axis = Axis::tp;
  int size = 1;
  int stride = 1;
};

std::vector<Axis> split_axes(const Grid& grid) {
  std::vector<Axis> axes;
  for (Axis axis : kAxes) {
    if (grid.degree(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

// Ranks of the grid with the digits' first value changing fastest.
std::vector<int> ranks_by(const Grid& grid, const std::vector<Digit>& digits) {
  std::vector<int> ranks;
  for (int i = 0; i < grid.world(); ++i) {
    Coordinate at{};
    int rest = i;
    for (const Digit& digit : digits) {
      at[digit.axis] += rest % digit.size * digit.stride;
      rest /= digit.size;
    }
    ranks.push_back(grid.rank(at));
  }
  return ranks;
}

std::vector<Digit> digits_of(const Grid& grid, const std::vector<Axis>& order) {
  std::vector<Digit> digits;
  for (Axis axis : order) digits.push_back({axis, grid.degree(axis), 1});
  return digits;
}

std::string order_text(const std::vector<Axis>& order) {
  std::vector<std::string> names;
  for (Axis axis : order) names.emplace_back(name_of(axis));
  return join(names, "-");
}

// Devices of a node so that near ones are neighbours: by the parts into which ever faster paths divide it.
std::vector<int> near_order(const NodeKind& kind) {
  const auto count = static_cast<int>(kind.devices.size());
  std::set<double> rates;
  for (const Path& path : kind.paths) {
    if (path.kind != PathKind::same) rates.insert(path.bandwidth);
  }
  std::vector<std::vector<int>> keys(kind.devices.size());
  for (double rate : rates) {
    std::vector<int> part(kind.devices.size(), -1);
    for (int d = 0; d < count; ++d) {
      if (part[static_cast<std::size_t>(d)] >= 0) continue;
      std::vector<int> open = {d};
      part[static_cast<std::size_t>(d)] = d;
      while (!open.empty()) {
        const int a = open.back();
        open.pop_back();
        for (int b = 0; b < count; ++b) {
          if (part[static_cast<std::size_t>(b)] >= 0 || kind.path(a, b).bandwidth < rate) continue;
          part[static_cast<std::size_t>(b)] = d;
          open.push_back(b);
        }
      }
    }
    for (int d = 0; d < count; ++d) keys[static_cast<std::size_t>(d)].push_back(part[static_cast<std::size_t>(d)]);
  }
  std::vector<int> order(kind.devices.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)]; });
  return order;
}

/// The search on one problem. Assignments are device_of_rank, followed by the devices that are not used.
class Search {
 public:
  Search(const Topology& topology, const Grid& grid, const Traffic& traffic, const PlaceOptions& options)
      : topology_(topology),
        grid_(grid),
        options_(options),
        model_(topology, grid, traffic),
        world_(static_cast<std::size_t>(grid.world())),
        devices_(static_cast<std::size_t>(topology.devices())) {}

  PlacedRanks run() {
    PlacedRanks placed;
    placed.lower_bound = model_.lower_bound();
    placed.alternatives = alternatives();
    for (const auto& alternative : placed.alternatives) consider(completed(alternative.device_of_rank));
    placed.exact = assignments() <= static_cast<double>(options_.exhaustive_up_to);
    if (placed.exact) {
      try_all();
    } else {
      try_boxes();
      try_packing();
      const auto starts = starts_;
      for (const auto& [seconds, start] : starts) improve(start);
      while (devices_ <= kExchanged && effort_left()) improve(shaken(best_));
    }
    placed.device_of_rank.assign(best_.begin(), best_.begin() + static_cast<std::ptrdiff_t>(world_));
    // Of equal ones an axis order is easier to realise.
    for (const auto& alternative : placed.alternatives) {
      if (alternative.seconds > seconds_ * (1 + 1e-12)) continue;
      placed.device_of_rank = alternative.device_of_rank;
      placed.order = alternative.order;
      break;
    }
    placed.cost = model_.cost(placed.device_of_rank);
    return placed;
  }

 private:
  using Assignment = std::vector<int>;

  double timed(const Assignment& assignment) {
    spent_ += static_cast<std::int64_t>(world_);
    return model_.seconds(std::span(assignment).first(world_));
  }
  bool effort_left() const { return spent_ < options_.effort; }

  void consider(const Assignment& assignment) {
    const double seconds = timed(assignment);
    keep(seconds, assignment);
    starts_.emplace(seconds, assignment);
    if (starts_.size() > 6) starts_.erase(std::prev(starts_.end()));
  }
  void keep(double seconds, const Assignment& assignment) {
    if (!best_.empty() && seconds >= seconds_) return;
    seconds_ = seconds;
    best_ = assignment;
  }

  Assignment completed(std::vector<int> device_of_rank) const {
    std::vector<bool> used(devices_);
    for (int d : device_of_rank) used[static_cast<std::size_t>(d)] = true;
    for (std::size_t d = 0; d < devices_; ++d) {
      if (!used[d]) device_of_rank.push_back(static_cast<int>(d));
    }
    return device_of_rank;
  }

  // Ranks in a sequence onto devices in a sequence.
  Assignment laid(const std::vector<int>& ranks, const std::vector<int>& devices) const {
    std::vector<int> device_of_rank(world_);
    for (std::size_t i = 0; i < world_; ++i) device_of_rank[static_cast<std::size_t>(ranks[i])] = devices[i];
    return completed(std::move(device_of_rank));
  }

  std::vector<Alternative> alternatives() {
    std::vector<int> devices(devices_);
    std::iota(devices.begin(), devices.end(), 0);
    std::vector<Alternative> all;
    std::vector<Axis> order = split_axes(grid_);
    do {
      Assignment assignment = laid(ranks_by(grid_, digits_of(grid_, order)), devices);
      const double seconds = timed(assignment);
      assignment.resize(world_);
      all.push_back({order_text(order), std::move(assignment), seconds});
    } while (std::next_permutation(order.begin(), order.end()));
    std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    return all;
  }

  double assignments() const {
    double count = 1;
    for (std::size_t i = 0; i < world_; ++i) count *= static_cast<double>(devices_ - i);
    return count;
  }

  // Heap-free: swaps from the left, depth first.
  void try_all() {
    Assignment assignment(devices_);
    std::iota(assignment.begin(), assignment.end(), 0);
    const std::function<void(std::size_t)> fill = [&](std::size_t rank) {
      if (rank == world_) return keep(timed(assignment), assignment);
      for (std::size_t i = rank; i < devices_; ++i) {
        std::swap(assignment[rank], assignment[i]);
        fill(rank + 1);
        std::swap(assignment[rank], assignment[i]);
      }
    };
    fill(0);
  }

  std::vector<std::vector<int>> device_sequences() const {
    std::vector<std::vector<int>> sequences(2);
    int first = 0;
    for (const TopologyNode& node : topology_.nodes) {
      const NodeKind& kind = topology_.kinds[static_cast<std::size_t>(node.kind)];
      for (int d : near_order(kind)) sequences[1].push_back(first + d);
      for (std::size_t d = 0; d < kind.devices.size(); ++d) sequences[0].push_back(first + static_cast<int>(d));
      first += static_cast<int>(kind.devices.size());
    }
    if (sequences[0] == sequences[1]) sequences.pop_back();
    return sequences;
  }

  // Boxes of ranks that fill a node, inner axes in every order, the boxes in every order of the axes.
  void try_boxes() {
    const auto axes = split_axes(grid_);
    const auto sequences = device_sequences();
    std::set<std::size_t> sizes;
    for (const NodeKind& kind : topology_.kinds) sizes.insert(kind.devices.size());
    std::vector<int> box(axes.size(), 1);
    const std::function<void(std::size_t, std::size_t)> choose = [&](std::size_t a, std::size_t left) {
      if (a == axes.size()) {
        if (left == 1) try_box(axes, box, sequences);
        return;
      }
      const int degree = grid_.degree(axes[a]);
      for (int part = 1; part <= degree; ++part) {
        if (degree % part != 0 || left % static_cast<std::size_t>(part) != 0) continue;
        box[a] = part;
        choose(a + 1, left / static_cast<std::size_t>(part));
      }
    };
    for (std::size_t size : sizes) {
      if (size > 1) choose(0, size);
    }
  }

  void try_box(const std::vector<Axis>& axes, const std::vector<int>& box,
               const std::vector<std::vector<int>>& sequences) {
    std::vector<std::size_t> inner(axes.size());
    std::iota(inner.begin(), inner.end(), 0U);
    do {
      std::vector<std::size_t> outer(axes.size());
      std::iota(outer.begin(), outer.end(), 0U);
      do {
        if (spent_ > options_.effort / 2) return;
        std::vector<Digit> digits;
        for (std::size_t a : inner) digits.push_back({axes[a], box[a], 1});
        for (std::size_t a : outer) digits.push_back({axes[a], grid_.degree(axes[a]) / box[a], box[a]});
        const auto ranks = ranks_by(grid_, digits);
        for (const auto& devices : sequences) consider(laid(ranks, devices));
      } while (std::next_permutation(outer.begin(), outer.end()));
      // Within a node the order matters only where its paths differ, and then exchanges find it on few devices.
      if (devices_ > 64 && sequences.size() == 1) return;
    } while (std::next_permutation(inner.begin(), inner.end()));
  }

  // Whole groups of one axis into nodes with room for them, the tightest first; what is left over where room is.
  void try_packing() {
    for (Axis axis : split_axes(grid_)) {
      std::vector<std::vector<int>> room;  // free devices of each node
      int first = 0;
      for (const TopologyNode& node : topology_.nodes) {
        auto& own = room.emplace_back();
        const NodeKind& kind = topology_.kinds[static_cast<std::size_t>(node.kind)];
        for (int d : near_order(kind)) own.push_back(first + d);
        std::reverse(own.begin(), own.end());
        first += static_cast<int>(kind.devices.size());
      }
      std::vector<int> device_of_rank(world_, -1);
      std::vector<int> homeless;
      for (const auto& group : grid_.groups(axis)) {
        auto best = room.end();
        for (auto it = room.begin(); it != room.end(); ++it) {
          if (it->size() >= group.size() &&
              (best == room.end() || it->size() % group.size() < best->size() % group.size()))
            best = it;
        }
        if (best == room.end()) {
          homeless.insert(homeless.end(), group.begin(), group.end());
          continue;
        }
        for (int rank : group) {
          device_of_rank[static_cast<std::size_t>(rank)] = best->back();
          best->pop_back();
        }
      }
      auto node = room.begin();
      for (int rank : homeless) {
        while (node->empty()) ++node;
        device_of_rank[static_cast<std::size_t>(rank)] = node->back();
        node->pop_back();
      }
      consider(completed(std::move(device_of_rank)));
    }
  }

  // Exchanges as long as one helps: of two ranks (or a rank and a free device); on many devices, of two places in every
  // node of a kind at once.
  void improve(Assignment assignment) {
    double seconds = timed(assignment);
    const bool by_ranks = devices_ <= kExchanged;
    bool better = true;
    while (better && effort_left()) {
      better = false;
      const std::size_t places_count = by_ranks ? world_ : most_places();
      for (std::size_t a = 0; a < places_count && effort_left(); ++a) {
        for (std::size_t b = a + 1; b < (by_ranks ? devices_ : places_count) && effort_left(); ++b) {
          Assignment changed = assignment;
          if (by_ranks) {
            std::swap(changed[a], changed[b]);
          } else {
            exchange_places(changed, static_cast<int>(a), static_cast<int>(b));
          }
          const double now = timed(changed);
          if (now >= seconds * (1 - 1e-12)) continue;
          seconds = now;
          assignment = std::move(changed);
          better = true;
        }
      }
    }
    keep(seconds, assignment);
  }

  // The best found with some exchanges at random: out of a hollow where no single exchange helps.
  Assignment shaken(Assignment assignment) {
    for (int i = 0; i < 4; ++i) std::swap(assignment[random_() % world_], assignment[random_() % devices_]);
    return assignment;
  }

  std::size_t most_places() const {
    std::size_t most = 0;
    for (const NodeKind& kind : topology_.kinds) most = std::max(most, kind.devices.size());
    return most;
  }

  void exchange_places(Assignment& assignment, int a, int b) {
    if (places_.empty()) places_ = places(topology_);
    for (int& device : assignment) {
      const int local = places_[static_cast<std::size_t>(device)].local;
      const int other = local == a ? b : local == b ? a : local;
      const auto moved = static_cast<std::size_t>(device + other - local);
      if (moved < devices_ && places_[moved].node == places_[static_cast<std::size_t>(device)].node)
        device = static_cast<int>(moved);
    }
  }

  const Topology& topology_;
  const Grid& grid_;
  const PlaceOptions& options_;
  MappingModel model_;
  std::size_t world_, devices_;
  std::int64_t spent_ = 0;
  double seconds_ = 0;
  Assignment best_;
  std::multimap<double, Assignment> starts_;
  std::vector<DevicePlace> places_;
  std::mt19937 random_{1};  // results do not depend on the day
};

}  // namespace

PlacedRanks place_ranks(const Topology& topology, const Grid& grid, const Traffic& traffic,
                        const PlaceOptions& options) {
  return Search(topology, grid, traffic, options).run();
}

}  // namespace cuboid
