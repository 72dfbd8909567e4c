// Walks the rows of a schedule together. Internal to parallel/pipeline.
#pragma once

#include <vector>

namespace cuboid::pipeline {

/// What a step of a row came to, where it is not the rank that the row waits for.
enum : int { kMoved = -1, kEnded = -2 };

/// Calls step(rank) until every row has ended or waits for another row. step returns kMoved, kEnded, or the rank whose
/// progress it waits for; a waiting row is tried again when that rank moves. The cost is one call a move, and one a
/// wait.
template <typename Step>
void walk_rows(int ranks, Step step) {
  std::vector<std::vector<int>> waiters(static_cast<std::size_t>(ranks));
  std::vector<int> ready;
  for (int rank = ranks - 1; rank >= 0; --rank) ready.push_back(rank);
  while (!ready.empty()) {
    const int rank = ready.back();
    ready.pop_back();
    int outcome = step(rank);
    auto& waiting = waiters[static_cast<std::size_t>(rank)];
    for (; outcome == kMoved; outcome = step(rank)) {
      ready.insert(ready.end(), waiting.begin(), waiting.end());
      waiting.clear();
    }
    if (outcome != kEnded) waiters[static_cast<std::size_t>(outcome)].push_back(rank);
  }
}

}  // namespace cuboid::pipeline
