// A plan or a prediction as one page of HTML that needs no network: candidates, time by cause, the step over time,
// memory over time, and the traffic between ranks.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cuboid/plan/search.h"

namespace cuboid {

/// Bytes a step from every rank to every other: collectives as rings over their groups' members in order, all-to-all
/// as it is, stage boundaries, and gradients and parameters over the data axis.
struct RankTraffic {
  int ranks_per_cell = 1;                  ///< of large worlds neighbouring ranks are put together
  std::vector<std::vector<double>> bytes;  ///< [from][to]
};
/// @param most_cells  a side
RankTraffic rank_traffic(Predictor& predictor, const RunConfig& run, const StepPrediction& prediction,
                         int most_cells = 64);

struct Report {
  std::string title;
  std::string subtitle;
  std::string explanation;
  std::vector<std::pair<std::string, std::string>> facts;  ///< value, what it is
  std::vector<PlanCandidate> candidates;                   ///< the first is the one drawn
  std::string candidates_json;                             ///< of each, as `cuboid plan --json` has them: an array
  double memory_limit = 0;                                 ///< bytes
};

/// @pre there is a candidate; its prediction is made again with spans
std::string report_page(Predictor& predictor, const Report& report);

}  // namespace cuboid
