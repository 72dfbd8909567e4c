// Runs of the oracle's models on a grid: through train(), and through replicas where a test wants to see what train()
// does not return (logits, weights).
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "cuboid/train/replica.h"
#include "cuboid/train/trainer.h"

namespace cuboid::golden {

/// Where and how a model is trained. The global batch is 8.
struct Layout {
  std::string model = "gpt2-tiny";
  int tp = 1, pp = 1, dp = 1, cp = 1;
  bool sequence_parallel = false;
  std::string schedule = "1f1b";
  int micro_batch = 2;
  std::vector<int> stage_layers = {};
  std::string order = std::string(Grid::kDefaultOrder);
  int zero = 0;
  int ep = 1;
};
/// "llama_odd_tp2_pp2_dp2_sp_gpipe_mb1_layers_3_2_order_pp_dp_tp": also a test's name.
std::string name_of(const Layout& layout);
void PrintTo(const Layout& layout, std::ostream* out);

std::string oracle_folder(const std::string& model);
ModelConfig oracle_model(const std::string& model);
/// The oracle's training run (data/oracle/README.md): 20 steps of AdamW from the stored weights on 8 sequences of 32.
RunConfig oracle_run(const Layout& layout);

using Norms = std::map<std::string, double>;  // by Hugging Face name

/// What the reference program computed on one batch at the stored weights.
struct ExpectedBatch {
  double loss = 0;
  double grad_norm = 0;
  Norms gradients;
  std::vector<double> sums;                                ///< loss sum of each sequence
  std::vector<double> logits;                              ///< first 8 of the last position of sequence 0, or empty
  std::vector<std::vector<std::int32_t>> inputs, targets;  ///< where written out
};
struct Expected {
  ExpectedBatch first, masked;
  ExpectedBatch longest;  ///< llama-odd only
  std::vector<double> losses, grad_norms;
  Norms final_weights;
};
Expected read_expected(const std::string& model);
/// A file of {"name": norm}.
Norms read_norms(const std::string& path);
std::vector<std::uint16_t> read_tokens(const std::string& model);

/// A run through train(), step by step.
struct Trace {
  std::vector<double> losses, grad_norms;
  TrainResult result;
};
Trace trace(const RunConfig& run, const ModelConfig& model);

/// Sample i of the batch of a step; false: every target is left out.
using StepReader =
    std::function<bool(int step, std::int64_t i, std::span<std::int32_t> inputs, std::span<std::int32_t> targets)>;
/// Reads batches of the oracle's stream, first_step on.
StepReader stream_reader(const std::string& model, std::int64_t seq_len, int global_batch, int first_step = 0);
/// Reads the same written-out batch at every step.
StepReader batch_reader(const ExpectedBatch& batch);

/// What is left in the replicas of a grid after some steps, gathered.
struct Learned {
  std::vector<double> losses;
  std::vector<double> grad_norms;  ///< before clipping
  Norms first_gradients, weight_norms;
  std::map<std::string, std::vector<float>> weights;  ///< global, by parameter
  std::string weights_hash;
};
/// Expects every weight of a run of so many steps of SGD to be where another run's is, to rounding.
void expect_near_weights(const Learned& other, const Learned& one, const Learned& start, int steps,
                         const std::string& of);
Learned learn(const RunConfig& run, const ModelConfig& model, const StepReader& read);

/// Logits (T·V) of sequence 0 of the reader's first batch at the stored weights.
std::vector<float> logits_of_first_sequence(const RunConfig& run, const ModelConfig& model, const StepReader& read);

}  // namespace cuboid::golden
