// Measured training runs that others have published, as a JSON array (benchmarks/published/README.md has the fields):
// each entry becomes a model, a run and what was measured. What the source leaves open is filled by stated rules.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuboid/value/model_config.h"
#include "cuboid/value/run_config.h"

namespace cuboid {

struct PublishedRun {
  std::string id;
  std::string source;     ///< title
  std::string gpu;        ///< "A100-SXM4-80GB"
  std::string precision;  ///< as the source calls it: "fp16", "bf16 with fp32 grad accumulation"
  std::string note;       ///< the entry's doubt about its own figures, if it states one
  ModelConfig model;
  RunConfig run;
  std::optional<double> step_seconds;  ///< measured
  std::optional<double> memory_bytes;  ///< measured on the fullest GPU
  bool out_of_memory = false;          ///< it did not run
};

/// The rules, where entries are silent or say it otherwise:
/// - gpt2 for plain MLPs (learned positions, as many as the sequence has), llama for gated ones. A plain MLP with fewer
///   key/value heads than query heads becomes a gated one of 2/3 of the width: as many weights and products.
/// - Vocabularies are padded to a multiple of 128 · tp, as Megatron-LM does.
/// - Layers that do not divide over the stages: one fewer on the first and the last where that divides (embedding and
///   output matrix take their place), else as many as can be, the first stages one more.
/// - 16-bit types of any kind are bfloat16; schedule none is 1f1b on one stage; zb-1p and zb-2p are zb-h1 and zb-h2;
///   no ZeRO stage stated is 0, no recomputation stated is none, no order stated is the default.
/// - memory_gb is GiB.
/// @throws Error{request}: no JSON array, or with all faulty entries and keys
std::vector<PublishedRun> parse_published_runs(const std::string& text, const std::string& source);

/// parse_published_runs on a file.
std::vector<PublishedRun> read_published_runs(const std::string& path);

}  // namespace cuboid
