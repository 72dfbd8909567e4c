#include "waves.h"

#include <algorithm>

namespace example {

std::vector<cuboid::Action> waves_row(const cuboid::RowRequest& request) {
  using cuboid::ActionKind;
  std::vector<cuboid::Action> row;
  for (int begin = 0; begin < request.micro_batches; begin += request.ranks) {
    const int end = std::min(begin + request.ranks, request.micro_batches);
    for (int k = begin; k < end; ++k) row.push_back({ActionKind::forward, request.rank, k});
    for (int k = begin; k < end; ++k) row.push_back({ActionKind::backward, request.rank, k});
  }
  return row;
}

}  // namespace example
