// Everything that decides a training run, as one value: what `cuboid train` was asked for once defaults, the run file
// and flags have been merged. Written to DIR/run.toml and read back.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuboid/core/dtype.h"
#include "cuboid/value/grid.h"

namespace cuboid {

/// Which activations are computed again in backward instead of being kept.
enum class Recompute {
  none,
  selective,  ///< what costs no matrix product: outputs of norms and activation functions
  full,       ///< everything inside a layer; only its input is kept
};
/// Where the times come from by which layers are split into stages and --schedule auto searches.
enum class Balance {
  flops,     ///< the model's arithmetic
  measured,  ///< a short profile before the first step
};
enum class OptimizerKind { adamw, sgd };
enum class LrSchedule { constant, cosine, linear };
enum class DataFormat { automatic, text, bin, megatron };
enum class DataOrder { sequential, shuffled };

struct DataConfig {
  std::vector<std::string> paths;  ///< one stream; or WEIGHT PATH WEIGHT PATH …, a blend of data sets
  DataFormat format = DataFormat::automatic;
  DataOrder order = DataOrder::sequential;
  double validation_fraction = 0;
  int eval_every = 0;                      ///< steps between validation losses; 0: never
  std::optional<std::int64_t> mask_token;  ///< targets equal to this id are left out of the loss
  std::string mask_file;                   ///< one byte a token of the stream, 0 = target left out; empty: none
  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 1e-3;
  double min_lr = 0;
  int warmup_steps = 0;
  LrSchedule lr_schedule = LrSchedule::constant;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double clip_grad = 1.0;  ///< largest global gradient norm; 0: no clipping
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

struct RunConfig {
  std::string model;    ///< preset name, config.json, or a folder that holds one
  std::string weights;  ///< folder of Hugging Face safetensors; empty: initialise from seed
  DataConfig data;
  Grid grid;
  std::string schedule = "1f1b";  ///< a name, auto, or file:PATH.csv
  int virtual_stages = 0;         ///< stages a rank; 0: the schedule's own number
  int max_activations = 0;        ///< most micro-batches of one stage that a rank may hold from F to B (or W); 0: any
  std::vector<int> stage_layers;  ///< layers of each stage; empty: balanced by cost
  Balance balance = Balance::flops;
  bool sequence_parallel = false;
  int zero = 0;                         ///< ZeRO stage over the ranks that hold copies, 0 … 3
  std::int64_t bucket_bytes = 4 << 20;  ///< gradients reduced and parameters gathered together, as float32 bytes
  DType dtype = DType::float32;         ///< of weights and activations as they are computed with
  DType reduce_dtype = DType::float32;  ///< in which ranks send each other sums of gradients and bfloat16 activations
  Recompute recompute = Recompute::none;
  int micro_batch = 1;
  int global_batch = 8;
  int seq_len = 128;
  int steps = 10;
  std::uint64_t seed = 0;
  double dropout = 0;
  double router_aux_loss = 0;  ///< coefficient of the loss that makes routers load experts evenly
  double router_z_loss = 0;    ///< coefficient of the loss that keeps router logits small
  OptimizerConfig optimizer;
  int threads_per_rank = 1;
  std::int64_t memory_limit = 0;  ///< most bytes a rank may hold; 0: the machine's, shared by its ranks
  double deadline = 600;          ///< longest wait for another rank, in seconds
  bool stop_on_nan = false;       ///< end at a step whose loss or gradient is not finite
  bool timeline = false;
  int checkpoint_every = 0;  ///< steps between checkpoints in out; 0: only when the run is told to stop
  int keep = 0;              ///< newest checkpoints kept; 0: all
  bool async_save = false;   ///< checkpoints are written while training goes on
  double max_seconds = 0;    ///< save and stop at the first step boundary after this time; 0: no limit
  std::string out;           ///< folder of metrics, run.toml, timeline; empty: none
  std::string dump_grads;    ///< file for the first step's gradient norms; empty: none

  friend bool operator==(const RunConfig&, const RunConfig&) = default;
  /// Micro-batches a rank runs in a step: global / (dp × ep × micro). @pre divisible (checked at start-up)
  int micro_batches() const { return global_batch / (grid.data_degree() * micro_batch); }
  /// Positions of a sequence that a rank holds between split layers: T, or its part over cp and, with sequence
  /// parallelism, tp.
  std::int64_t local_positions() const {
    return std::int64_t{seq_len} / grid.degree(Axis::cp) / (sequence_parallel ? grid.degree(Axis::tp) : 1);
  }
};

}  // namespace cuboid
