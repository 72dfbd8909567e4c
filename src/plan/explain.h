// Why a plan is the best of its search, in words. Private to plan.
#pragma once

#include <string>

#include "cuboid/plan/search.h"

namespace cuboid::plan {

/// One paragraph: what bounds the choice of each axis, where the time goes, and the next best with another grid.
/// @param smallest  least memory that any candidate could do with, for a search without result; infinite: none was
///                  possible at all
std::string explain(Predictor& predictor, const PlanRequest& request, double limit, const PlanResult& result,
                    double smallest);

}  // namespace cuboid::plan
