// What a model family is: its parameters, its forward computation in the field's own words, and its Hugging Face names.
// Everything else (tensor split, pipeline stages, gradients, loading) follows from these three.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/parallel/context_parallel.h"
#include "cuboid/parallel/expert_parallel.h"
#include "cuboid/parallel/parameter_store.h"
#include "cuboid/parallel/tensor_parallel.h"
#include "cuboid/value/model_config.h"
#include "cuboid/value/parameter_table.h"

namespace cuboid {

/// Randomness of a step, for dropout: the same for the same global position on any grid.
struct StepIdentity {
  std::uint64_t seed = 0;
  int step = 0;
  double dropout = 0;  ///< probability; 0 in evaluation
};

/// One micro-batch's way through (a part of) a model: what its forward code writes into.
class Forward {
 public:
  /// @param first_sample  global index of the micro-batch's first sample
  /// @param rope_cache    the rotary tables of seq_len, computed here when first asked for
  /// @param on_routed     told what the router of a layer did, once more when the layer is recomputed
  Forward(Tape& tape, const ModelConfig& config, const TensorParallel& tp, const ParameterStore& parameters,
          const StepIdentity& step, std::int64_t first_sample, std::int64_t seq_len, ops::RopeTables& rope_cache,
          const ExpertParallel& experts = {}, const ContextParallel& context = {},
          std::function<void(int layer, RouterReport)> on_routed = {});

  Tape& tape;
  const ModelConfig& config;
  const TensorParallel& tp;
  ExpertParallel experts;
  ContextParallel context;
  std::int64_t seq_len;  ///< T of the whole sequence

  /// The parameter of that name on this rank. @throws std::logic_error if it lives elsewhere
  Parameter& operator[](std::string_view name) const;
  /// "layers.3." + name: a layer's parameter.
  Parameter& layer(int layer, std::string_view name) const;

  /// Query and key/value heads of this rank.
  std::int64_t local_heads() const { return config.heads / tp.size(); }
  std::int64_t local_kv_heads() const { return std::max<std::int64_t>(1, config.kv_heads / tp.size()); }
  /// Experts of a layer that lie on this rank: local_experts() of them, from first_expert() on.
  std::int64_t local_experts() const { return config.experts / experts.size(); }
  std::int64_t first_expert() const { return experts.rank() * local_experts(); }
  /// cuboid::route by the config's number of experts a token.
  Routing route(int layer, const Var& x, Parameter& weight) const;
  /// First global row of this rank's part of the vocabulary.
  std::int64_t first_vocabulary_row() const;
  /// Positions of the rows that this rank holds between split layers: all T, T/cp of them, or T/cp/tp with sequence
  /// parallelism; and how many they are.
  SequencePart rows() const;
  std::int64_t row_count() const;

  /// Rotary tables (T/cp,D/2) of the config's frequencies.
  const ops::RopeTables& rope() const;

  /// Mask of the dropout `operation` of a layer (0 embedding, 1 … L layers) on (T,B,C) activations.
  kernels::Dropout dropout(int block, std::string_view operation) const;
  /// The same for attention probabilities of this rank's heads, keyed by the positions of queries and keys.
  kernels::Dropout attention_dropout(int block) const;

 private:
  kernels::Dropout mask(int block, std::string_view operation) const;
  const ParameterStore& parameters_;
  StepIdentity step_;
  std::int64_t first_sample_;
  ops::RopeTables& rope_;
  std::function<void(int, RouterReport)> on_routed_;
};

/// How a Hugging Face tensor maps to a parameter, or to one piece of it.
struct HfTensor {
  std::string hf_name;      ///< "transformer.h.0.attn.c_attn.weight"
  std::string parameter;    ///< "layers.0.attention.qkv.weight"
  int piece = -1;           ///< index into the parameter's pieces; -1: all of it
  bool transposed = false;  ///< stored (in, out) there, (out, in) here
};

class Model {
 public:
  virtual ~Model() = default;
  /// Key in the registry: "gpt2".
  virtual std::string family() const = 0;
  virtual ParameterTable parameters(const ModelConfig& config) const = 0;
  virtual std::vector<HfTensor> hugging_face_tensors(const ModelConfig& config) const = 0;
  /// A small configuration for the tests that run on every family: 3 layers, 4 query and 2 key/value heads, an MLP that
  /// 4 ranks can split, all sizes different from each other, and whatever sets the family apart switched on.
  virtual ModelConfig tiny() const;

  /// tokens (T,B) → (T,B,C), or its shard of the sequence (T/tp,B,C) under sequence parallelism; so are all activations
  /// between layers. Under context parallelism T is T/cp, here and in what follows.
  virtual Var embed(Forward& f, const Tensor& tokens) const = 0;
  /// Layer i, 0 … L-1.
  virtual Var layer(Forward& f, int i, const Var& x) const = 0;
  /// Layers of equal kind have equal parameters, kernels and costs. Those with a sliding window differ from those
  /// without; models whose layers differ otherwise tell them apart here.
  virtual int layer_kind(const ModelConfig& config, int i) const { return config.window_of(i) > 0 ? 1 : 0; }
  /// True if layers mix positions through context_parallel_attention alone, so that --cp can cut sequences. A model
  /// that says so wrongly trains on parts of sequences.
  virtual bool splits_context() const { return false; }
  /// What follows the last layer and precedes the output matrix "head.weight" (V,C), which every family has (possibly
  /// tied): (T,B,C) → (T,B,C). Logits and loss follow by themselves.
  virtual Var final_norm(Forward& f, const Var& x) const = 0;
};

}  // namespace cuboid
