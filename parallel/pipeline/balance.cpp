#include "cuboid/parallel/pipeline/balance.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "cuboid/core/error.h"

namespace cuboid {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Sums of equal costs in different order differ in the last bits; such splits are equal.
constexpr double kRounding = 1 + 1e-12;

class Balance {
 public:
  Balance(const std::vector<double>& costs, int stages)
      : stages_(stages), layers_(static_cast<int>(costs.size()) - 2), prefix_(costs.size() + 1) {
    for (std::size_t i = 0; i < costs.size(); ++i) prefix_[i + 1] = prefix_[i] + costs[i];
  }

  std::vector<int> split() const {
    const double limit = slowest() * kRounding;
    const Reach reach = reach_within(limit);
    const Table squares = least_squares(limit, reach);
    const auto least = [&](int stage, int begin) { return at(squares, reach, stage, begin); };
    std::vector<int> layers;
    int begin = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      int end = std::max(begin + 1, reach.first[at(stage + 1)]);
      while (!(cost(stage, begin, end) <= limit &&
               square(stage, begin, end) + least(stage + 1, end) <= least(stage, begin) * kRounding)) {
        ++end;
      }
      layers.push_back(end - begin);
      begin = end;
    }
    return layers;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  // Cost of a stage that holds layers [begin, end), with the embedding or the head where it is the first or the last.
  double cost(int stage, int begin, int end) const {
    const int first = stage == 0 ? 0 : begin + 1;
    const int past = stage + 1 == stages_ ? layers_ + 2 : end + 1;
    return prefix_[at(past)] - prefix_[at(first)];
  }
  double square(int stage, int begin, int end) const {
    const double own = cost(stage, begin, end);
    return own * own;
  }

  // The slowest stage if each takes as many layers as the limit lets it; infinite if that does not do for all layers.
  double packed(double limit) const {
    double slowest = 0;
    int begin = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      int end = stage + 1 == stages_ ? layers_ : begin + 1;
      const int last = layers_ - (stages_ - 1 - stage);  // each later stage needs a layer
      while (end < last && cost(stage, begin, end + 1) <= limit) ++end;
      slowest = std::max(slowest, cost(stage, begin, end));
      if (slowest > limit) return kInfinity;
      begin = end;
    }
    return slowest;
  }

  // The smallest limit that does: halving, and then from each packing to the next that is better by any amount.
  double slowest() const {
    double found = packed(kInfinity);
    double low = prefix_.back() / stages_ / kRounding;
    while (low < found && found - low > 1e-9 * found) {
      const double middle = (low + found) / 2;
      const double now = packed(middle);
      if (now < kInfinity) {
        found = now;
      } else {
        low = middle;
      }
    }
    for (double next = found; next < kInfinity; next = packed(std::nextafter(found, -1.0))) found = next;
    return found;
  }

  // Where stages can begin within a limit: [first, last] of each, and behind the last stage.
  struct Reach {
    std::vector<int> first, last;
  };
  Reach reach_within(double limit) const {
    Reach reach{std::vector<int>(at(stages_ + 1), layers_), std::vector<int>(at(stages_ + 1), 0)};
    for (int stage = 0; stage < stages_; ++stage) {
      const int begin = reach.last[at(stage)];
      int end = stage + 1 == stages_ ? layers_ : begin + 1;
      const int most = layers_ - (stages_ - 1 - stage);
      while (end < most && cost(stage, begin, end + 1) <= limit) ++end;
      reach.last[at(stage + 1)] = end;
    }
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      const int end = reach.first[at(stage + 1)];
      int begin = stage == 0 ? 0 : end - 1;
      while (begin > stage && cost(stage, begin - 1, end) <= limit) --begin;
      reach.first[at(stage)] = begin;
    }
    return reach;
  }

  // table[stage]: of each place within reach where the stage can begin.
  using Table = std::vector<std::vector<double>>;
  static double at(const Table& table, const Reach& reach, int stage, int begin) {
    const int first = reach.first[at(stage)];
    return begin < first || begin > reach.last[at(stage)] ? kInfinity : table[at(stage)][at(begin - first)];
  }

  // The least sum of squares of stages stage… with layers begin…, none above the limit.
  Table least_squares(double limit, const Reach& reach) const {
    Table table(at(stages_ + 1));
    table[at(stages_)] = {0};
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      const int first = reach.first[at(stage)];
      table[at(stage)].assign(at(std::max(0, reach.last[at(stage)] - first + 1)), kInfinity);
      for (int begin = first; begin <= reach.last[at(stage)]; ++begin) {
        double& best = table[at(stage)][at(begin - first)];
        for (int end = std::max(begin + 1, reach.first[at(stage + 1)]); end <= reach.last[at(stage + 1)]; ++end) {
          if (cost(stage, begin, end) > limit) break;
          best = std::min(best, square(stage, begin, end) + at(table, reach, stage + 1, end));
        }
      }
    }
    return table;
  }

  int stages_;
  int layers_;
  std::vector<double> prefix_;
};

// The same where all layers cost the same, as in most models: only how many layers the first and the last stage have is
// open, since those between share the rest evenly, the first of them one fewer. @pre at least two stages
class EvenBalance {
 public:
  EvenBalance(double embedding, double layer, double head, int layers, int stages)
      : embedding_(embedding), layer_(layer), head_(head), layers_(layers), between_(stages - 2) {}

  std::vector<int> split() const {
    const double limit = slowest();
    Split best;
    for (int first = 1; first <= fitting(embedding_, limit); ++first) {
      // As many on the last stage as fit leave fewest to those between: a split that is equally good comes before.
      for (int last = std::min(fitting(head_, limit), layers_ - between_ - first); last >= 1; --last) {
        const int rest = layers_ - first - last;
        if (rest > between_ * fitting(0, limit)) break;
        const double now = squares(first, rest, last);
        if (now * kRounding < best.squares) best = {first, rest, last, now};
      }
    }
    std::vector<int> layers = {best.first};
    for (int i = 0; i < between_; ++i) {
      layers.push_back(best.rest / between_ + (i >= between_ - best.rest % between_ ? 1 : 0));
    }
    layers.push_back(best.last);
    return layers;
  }

 private:
  struct Split {
    int first = 1, rest = 0, last = 1;
    double squares = kInfinity;
  };

  // Layers of a stage within the limit, which is one that some whole number of layers reaches but for rounding.
  int fitting(double extra, double limit) const {
    return static_cast<int>(std::floor((limit - extra) / layer_ + 1e-9));
  }

  bool fits(double limit) const {
    const int first = fitting(embedding_, limit);
    const int last = fitting(head_, limit);
    const int each = fitting(0, limit);
    return first >= 1 && last >= 1 && (between_ == 0 || each >= 1) && first + last + between_ * each >= layers_;
  }

  // The least time within which all layers fit: that of a first, a last or another stage with a whole number of them.
  double slowest() const {
    const double mean = (embedding_ + head_ + layers_ * layer_) / (between_ + 2);
    double least = kInfinity;
    for (const double extra : {embedding_, head_, 0.0}) {
      double limit = extra + layer_ * std::max(1.0, std::floor((mean - extra) / layer_));
      while (!fits(limit)) limit += layer_;
      least = std::min(least, limit);
    }
    return least;
  }

  double squares(int first, int rest, int last) const {
    const double ends = square(embedding_ + first * layer_) + square(head_ + last * layer_);
    if (between_ == 0) return rest == 0 ? ends : kInfinity;
    const int more = rest % between_;
    const double least = rest / between_;
    return ends + ((between_ - more) * square(least) + more * square(least + 1)) * square(layer_);
  }
  static double square(double x) { return x * x; }

  double embedding_, layer_, head_;
  int layers_;
  int between_;
};

bool even(const std::vector<double>& costs) {
  const double layer = costs[1];
  if (std::any_of(costs.begin() + 1, costs.end() - 1, [&](double cost) { return cost != layer; })) return false;
  // Beside much larger ends a layer more or less is lost in rounding, by which ties are judged.
  return layer > 1e-4 * (costs.front() + costs.back());
}

}  // namespace

std::vector<int> balance_layers(const std::vector<double>& block_costs, int stages) {
  CUBOID_CHECK(block_costs.size() >= 2, "costs of embedding, layers and head");
  const int layers = static_cast<int>(block_costs.size()) - 2;
  Problems problems;
  problems.add_if(stages < 1, fmt::format("--pp {}: a pipeline has at least 1 stage", stages));
  problems.add_if(stages > layers,
                  fmt::format("{} layers cannot fill {} pipeline stages: each has at least one", layers, stages));
  for (double cost : block_costs) CUBOID_CHECK(cost >= 0 && cost < kInfinity, "a cost is finite and not negative");
  problems.throw_if_any();
  if (stages > 1 && even(block_costs)) {
    return EvenBalance(block_costs.front(), block_costs[1], block_costs.back(), layers, stages).split();
  }
  return Balance(block_costs, stages).split();
}

}  // namespace cuboid
