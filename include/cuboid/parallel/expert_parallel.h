// Mixture of experts over the expert axis: a router sends each token to k of E MLPs, which lie on the ranks of the
// expert group, each cut over the tensor axis like a dense one. Nothing is dropped: however unevenly tokens are spread,
// every copy is computed. Ranks of an expert group route their own samples' tokens and exchange them (arXiv
// 2006.16668), so that
//   - an expert's gradient is a sum over all their samples as it is: it is reduced over dp (and cp) alone;
//   - everything else, the router too, is dense: reduced over dp, ep (and cp).
// The steps, in a layer: route → dispatch → expert_linear, activation, expert_linear → combine.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cuboid/parallel/tensor_parallel.h"

namespace cuboid {

/// The expert group as layers see it, and what routers are asked for besides the loss.
struct ExpertParallel {
  Communicator* comm = nullptr;  ///< null: this rank holds all experts
  /// Ranks that hold the other positions of the same samples (context parallelism), whose tokens count together in the
  /// auxiliary losses; null: none.
  Communicator* context = nullptr;
  /// What a micro-batch's auxiliary losses count in the gradient: coefficient / micro-batches of the global batch.
  double aux_factor = 0;
  double z_factor = 0;

  int rank() const { return comm ? comm->rank() : 0; }
  int size() const { return comm ? comm->size() : 1; }
};

/// What a layer's router did with a micro-batch.
struct RouterReport {
  std::vector<std::int64_t> tokens;      ///< (E) copies sent to each expert, of whole sequences
  std::int64_t rows = 0;                 ///< tokens of the micro-batch, whole sequences
  std::vector<double> probability_sums;  ///< (E) over the rows that this rank routed
  double squared_log_sums = 0;           ///< Σ over the same rows of (log Σ exp(logit))²
  /// This rank's part of E·Σ f·P with f the share of copies and P the mean probability of each expert: 1 when balanced
  /// (Switch Transformers, arXiv 2101.03961, equation 4; f over all k choices).
  double aux_loss() const;
  /// This rank's part of the mean squared log-sum-exp (ST-MoE, arXiv 2202.08906, equation 5).
  double z_loss() const { return squared_log_sums / static_cast<double>(rows); }
};

/// Which row goes where.
struct ExpertExchange {
  Shape tokens;                             ///< (T,B): whole sequences, or their part of the context rank
  Tensor slot;                              ///< (N,k): place of each copy among those of this rank's tokens, by expert
  Tensor source;                            ///< (N·k): row of the copy at each place
  std::vector<std::int64_t> sent, arrived;  ///< rows to and from each rank of the expert group
  Tensor order, place;                      ///< (R): arrived rows by expert and sender, and back; undefined: they are
  std::vector<std::int64_t> expert_rows;    ///< rows of each expert of this rank
  std::int64_t rows() const;                ///< R, of all its experts together
};

struct Routing {
  DType dtype = DType::float32;  ///< of activations
  Var weights;                   ///< (T,B,k), float32 in bfloat16 models too: what a token's experts count
  std::shared_ptr<const ExpertExchange> exchange;
};

/// Logits = x · weightᵀ with weight (E,C), replicated; the k largest of softmax(logits), renormalised, in float32. x is
/// (T,B,C), or its shard with sequence parallelism: each rank routes its own part then.
/// @param report  told what was done; once more when the layer is recomputed
Routing route(Tape& tape, const TensorParallel& tp, const ExpertParallel& ep, const Var& x, Parameter& weight,
              std::int64_t experts_per_token, const std::function<void(RouterReport)>& report);

/// x (as in route) → (R,C), the rows of this rank's experts, expert by expert.
Var dispatch(Tape& tape, const TensorParallel& tp, const ExpertParallel& ep, const Var& x, const Routing& routing);

enum class ExpertSplit {
  column,  ///< weights (out/tp,in): as column_linear
  row,     ///< weights (out,in/tp): as row_linear, whose sum over tp comes after combine()
};
/// Each expert's rows times its own weight: x (R,in) → (R,out). `weights`: one an expert of this rank. What is a
/// partial sum over tp, the output of a row split and the input gradient of a column split, is of tp's partial type.
Var expert_linear(Tape& tape, const TensorParallel& tp, const Var& x, const Routing& routing,
                  const std::vector<Parameter*>& weights, ExpertSplit split);

/// Rows (R,C) of the experts back to their tokens, weighted and added: (T,B,C), or the shard with sequence parallelism.
Var combine(Tape& tape, const TensorParallel& tp, const ExpertParallel& ep, const Var& rows, const Routing& routing);

}  // namespace cuboid
