#include "cuboid/parallel/pipeline/balance.h"

#include <algorithm>
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
    const auto slowest = solve([](double stage, double rest) { return std::max(stage, rest); }, kInfinity);
    const double limit = slowest[0][0] * kRounding;
    const auto squares = solve([](double stage, double rest) { return stage * stage + rest; }, limit);
    std::vector<int> layers;
    int begin = 0;
    for (int stage = 0; stage < stages_; ++stage) {
      int end = begin + 1;
      while (!(cost(stage, begin, end) <= limit &&
               cost(stage, begin, end) * cost(stage, begin, end) + at(squares, stage + 1, end) <=
                   at(squares, stage, begin) * kRounding)) {
        ++end;
      }
      layers.push_back(end - begin);
      begin = end;
    }
    return layers;
  }

 private:
  using Table = std::vector<std::vector<double>>;
  static double at(const Table& table, int stage, int begin) {
    return table[static_cast<std::size_t>(stage)][static_cast<std::size_t>(begin)];
  }

  // Cost of a stage that holds layers [begin, end), with the embedding or the head where it is the first or the last.
  double cost(int stage, int begin, int end) const {
    const int first = stage == 0 ? 0 : begin + 1;
    const int past = stage + 1 == stages_ ? layers_ + 2 : end + 1;
    return prefix_[static_cast<std::size_t>(past)] - prefix_[static_cast<std::size_t>(first)];
  }

  // table[stage][begin]: the best that stages stage… can do with layers begin…, over splits without a stage above
  // limit.
  template <typename Join>
  Table solve(Join join, double limit) const {
    Table table(static_cast<std::size_t>(stages_) + 1,
                std::vector<double>(static_cast<std::size_t>(layers_) + 1, kInfinity));
    table[static_cast<std::size_t>(stages_)][static_cast<std::size_t>(layers_)] = 0;
    for (int stage = stages_ - 1; stage >= 0; --stage) {
      for (int begin = 0; begin < layers_; ++begin) {
        double& best = table[static_cast<std::size_t>(stage)][static_cast<std::size_t>(begin)];
        for (int end = begin + 1; end <= layers_; ++end) {
          if (stage + 1 == stages_ && end != layers_) continue;
          const double own = cost(stage, begin, end);
          if (own <= limit) best = std::min(best, join(own, at(table, stage + 1, end)));
        }
      }
    }
    return table;
  }

  int stages_;
  int layers_;
  std::vector<double> prefix_;
};

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
  return Balance(block_costs, stages).split();
}

}  // namespace cuboid
