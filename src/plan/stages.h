// A traced model priced block by block, and the stages of a pipeline made of its blocks. Private to plan.
#pragma once

#include <vector>

#include "cuboid/parallel/pipeline/simulate.h"
#include "cuboid/plan/cost.h"
#include "cuboid/plan/predict.h"

namespace cuboid::plan {

/// Seconds of an action by cause.
struct ActionCost {
  double compute = 0;
  double tp = 0;
  double dp = 0;
  double pp = 0;
  double total() const { return compute + tp + dp + pp; }
  ActionCost& operator+=(const ActionCost& other);
};

/// Bytes of a micro-batch of one block or stage.
struct ActivationBytes {
  double kept = 0;              ///< from forward to the end of backward
  double kept_for_weights = 0;  ///< of kept, what I leaves for W
  double temporary = 0;         ///< beyond kept, while backward runs
};

/// A block, or the blocks of a stage, on one rank.
struct BlockPrice {
  ActionCost forward, backward, input_gradient, weight_gradient;
  ActivationBytes bytes;
  double parameters = 0;         ///< elements of this rank that all data-parallel ranks hold alike
  double expert_parameters = 0;  ///< elements of experts
  double flops = 0;              ///< of forward and whole backward
  BlockPrice& operator+=(const BlockPrice& other);
};

struct ModelPrice {
  BlockPrice embedding;
  std::vector<BlockPrice> layers;  ///< one a kind
  BlockPrice head;
};

/// Groups over which gradients are reduced and parameters gathered.
struct CopyPlacements {
  GroupPlacement dense;   ///< cp × ep × dp
  GroupPlacement expert;  ///< cp × dp
};
CopyPlacements place_copies(const Cluster& cluster, const Grid& grid);

/// The head as it is where all logits are made at once: kernels that do the same to chunks of the tokens become one.
void merge_chunks(TracedBlock& head);

/// Prices every block, with the gathers of ZeRO-3 and the reductions of ZeRO-2 and 3 that belong to a micro-batch.
ModelPrice price_model(const Cluster& cluster, const RunConfig& run, const ModelConfig& model, const ModelTrace& trace);

/// Seconds of a data-parallel collective over elements, in messages of bucket-bytes.
double data_seconds(const Cluster& cluster, const GroupPlacement& group, TracedCommunication::Operation operation,
                    double bytes);

/// What remains of a communication beside computing that may hide `share` of its own time in it: comm - hidden +
/// contention · hidden.
double exposed(const Cluster& cluster, double communication, double compute);

}  // namespace cuboid::plan
