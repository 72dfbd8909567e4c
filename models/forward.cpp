#include "cuboid/core/random.h"
#include "cuboid/models/model.h"
#include "cuboid/models/rope.h"

namespace cuboid {

Forward::Forward(Tape& tape_, const ModelConfig& config_, const TensorParallel& tp_, const ParameterStore& parameters,
                 const StepIdentity& step, std::int64_t first_sample, std::int64_t seq_len_,
                 ops::RopeTables& rope_cache, const ExpertParallel& experts_, const ContextParallel& context_,
                 std::function<void(int, RouterReport)> on_routed)
    : tape(tape_),
      config(config_),
      tp(tp_),
      experts(experts_),
      context(context_),
      seq_len(seq_len_),
      parameters_(parameters),
      step_(step),
      first_sample_(first_sample),
      rope_(rope_cache),
      on_routed_(std::move(on_routed)) {}

Parameter& Forward::operator[](std::string_view name) const {
  Parameter* found = parameters_.find(name);
  CUBOID_CHECK(found != nullptr, "parameter " + std::string(name) + " is not on this rank");
  return *found;
}

Parameter& Forward::layer(int layer, std::string_view name) const {
  return (*this)["layers." + std::to_string(layer) + "." + std::string(name)];
}

Routing Forward::route(int layer, const Var& x, Parameter& weight) const {
  std::function<void(RouterReport)> report;
  if (on_routed_) report = [this, layer](RouterReport made) { on_routed_(layer, std::move(made)); };
  return cuboid::route(tape, tp, experts, x, weight, config.experts_per_token, report);
}

std::int64_t Forward::first_vocabulary_row() const {
  return even_share(config.vocab, tp.rank(), tp.size()).begin;
}

std::int64_t Forward::row_count() const {
  const std::int64_t part = seq_len / context.size();
  return tp.splits_sequence() ? part / tp.size() : part;
}

SequencePart Forward::rows() const {
  const SequencePart part = context.part(seq_len);
  return tp.splits_sequence() ? part.from(tp.rank() * row_count()) : part;
}

const ops::RopeTables& Forward::rope() const {
  if (!rope_.cos.defined()) {
    rope_ = ops::rope_tables(tape.device(), rope_frequencies(config), context.part(seq_len), seq_len / context.size(),
                             compute_type(parameters_.all().front()->value.dtype()));
  }
  return rope_;
}

kernels::Dropout Forward::mask(int block, std::string_view operation) const {
  std::uint64_t key = mix_key(step_.seed, name_key("dropout"));
  key = mix_key(key, static_cast<std::uint64_t>(step_.step));
  key = mix_key(key, static_cast<std::uint64_t>(block));
  key = mix_key(key, name_key(operation));
  return {.p = step_.dropout, .key = key, .first_sample = first_sample_};
}

kernels::Dropout Forward::dropout(int block, std::string_view operation) const {
  kernels::Dropout made = mask(block, operation);
  made.rows = rows();
  return made;
}

kernels::Dropout Forward::attention_dropout(int block) const {
  kernels::Dropout made = mask(block, "attention");
  made.first_head = tp.rank() * local_heads();
  return made;
}

}  // namespace cuboid
