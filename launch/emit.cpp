#include "launch/emit.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/text.h"
#include "cuboid/formats/run_file.h"

namespace cuboid::launch {
namespace {

// Layers of a virtual stage, as Megatron-LM counts interleaving.
std::int64_t layers_of_chunk(const RunConfig& run, const ModelConfig& model) {
  return model.layers / (run.grid.degree(Axis::pp) * std::max(1, run.virtual_stages));
}

void add_megatron_model(std::vector<std::string>& lines, const ModelConfig& model) {
  lines.push_back(
      fmt::format("--num-layers {} --hidden-size {} --ffn-hidden-size {}", model.layers, model.hidden, model.ffn));
  lines.push_back(fmt::format("--num-attention-heads {} --kv-channels {}", model.heads, model.head_dim));
  if (model.kv_heads != model.heads) {
    lines.push_back(fmt::format("--group-query-attention --num-query-groups {}", model.kv_heads));
  }
  lines.push_back(fmt::format("--max-position-embeddings {}", model.positions));
  if (model.family == "gpt2") {
    lines.push_back("--position-embedding-type learned_absolute");
  } else {
    lines.push_back(fmt::format("--position-embedding-type rope --rotary-base {:.0f}", model.rope_theta));
    lines.push_back("--normalization RMSNorm --swiglu --disable-bias-linear");
  }
  if (!model.tied) lines.push_back("--untie-embeddings-and-output-weights");
}

std::string megatron(const RunConfig& run, const ModelConfig& model) {
  std::vector<std::string> lines;
  const Grid& grid = run.grid;
  lines.push_back(fmt::format("--tensor-model-parallel-size {} --pipeline-model-parallel-size {}",
                              grid.degree(Axis::tp), grid.degree(Axis::pp)));
  if (grid.degree(Axis::cp) > 1) lines.push_back(fmt::format("--context-parallel-size {}", grid.degree(Axis::cp)));
  if (model.experts > 0) {
    lines.push_back(fmt::format("--num-experts {} --moe-router-topk {} --expert-model-parallel-size {}", model.experts,
                                model.experts_per_token, grid.degree(Axis::ep)));
  }
  if (run.virtual_stages > 1) {
    lines.push_back(fmt::format("--num-layers-per-virtual-pipeline-stage {}", layers_of_chunk(run, model)));
  }
  if (run.sequence_parallel) lines.push_back("--sequence-parallel");
  if (run.zero == 1) lines.push_back("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather");
  if (run.recompute == Recompute::selective) lines.push_back("--recompute-activations");
  if (run.recompute == Recompute::full) {
    lines.push_back("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1");
  }
  lines.push_back(fmt::format("--micro-batch-size {} --global-batch-size {} --seq-length {}", run.micro_batch,
                              run.global_batch, run.seq_len));
  if (run.dtype == DType::bfloat16) lines.push_back("--bf16");
  add_megatron_model(lines, model);
  return join(lines, " \\\n") + "\n";
}

std::string torchtitan(const RunConfig& run) {
  const Grid& grid = run.grid;
  static const std::vector<std::pair<std::string, std::string>> kNames = {
      {"gpipe", "GPipe"}, {"1f1b", "1F1B"}, {"interleaved-1f1b", "Interleaved1F1B"}, {"zb-v", "ZBVZeroBubble"}};
  const bool sharded = run.zero == 3;
  std::string text = "[training]\n";
  text += fmt::format("local_batch_size = {}\nglobal_batch_size = {}\nseq_len = {}\n",
                      run.micro_batch * run.micro_batches(), run.global_batch, run.seq_len);
  text += "\n[parallelism]\n";
  text += fmt::format("data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n",
                      sharded ? 1 : grid.data_degree(), sharded ? grid.data_degree() : 1);
  if (grid.degree(Axis::ep) > 1) text += fmt::format("expert_parallel_degree = {}\n", grid.degree(Axis::ep));
  if (grid.degree(Axis::cp) > 1) text += fmt::format("context_parallel_degree = {}\n", grid.degree(Axis::cp));
  text += fmt::format("tensor_parallel_degree = {}\n", grid.degree(Axis::tp));
  text += fmt::format("pipeline_parallel_degree = {}\n", grid.degree(Axis::pp));
  if (grid.degree(Axis::pp) > 1) {
    const auto found =
        std::find_if(kNames.begin(), kNames.end(), [&](const auto& n) { return n.first == run.schedule; });
    CUBOID_CHECK(found != kNames.end(), run.schedule);
    text += fmt::format("pipeline_parallel_schedule = \"{}\"\npipeline_parallel_microbatch_size = {}\n", found->second,
                        run.micro_batch);
  }
  text += "\n[activation_checkpoint]\n";
  text += fmt::format("mode = \"{}\"\n", run.recompute == Recompute::none   ? "none"
                                         : run.recompute == Recompute::full ? "full"
                                                                            : "selective");
  return text;
}

std::string deepspeed(const RunConfig& run) {
  nlohmann::ordered_json config;
  config["train_batch_size"] = run.global_batch;
  config["train_micro_batch_size_per_gpu"] = run.micro_batch;
  config["gradient_accumulation_steps"] = run.micro_batches();
  config["bf16"] = {{"enabled", run.dtype == DType::bfloat16}};
  config["zero_optimization"] = {{"stage", run.zero}, {"overlap_comm", true}};
  if (run.optimizer.clip_grad > 0) config["gradient_clipping"] = run.optimizer.clip_grad;
  if (run.grid.degree(Axis::tp) > 1) config["tensor_parallel"] = {{"autotp_size", run.grid.degree(Axis::tp)}};
  if (run.grid.degree(Axis::pp) > 1) config["pipeline"] = {{"stages", run.grid.degree(Axis::pp)}};
  if (run.recompute != Recompute::none) {
    config["activation_checkpointing"] = {{"partition_activations", run.sequence_parallel}};
  }
  return config.dump(2) + "\n";
}

std::string flags_of(const RunConfig& run) {
  std::string text = fmt::format("--model {}", run.model);
  for (const Axis axis : kAxes) {
    if (run.grid.degree(axis) > 1) text += fmt::format(" --{} {}", name_of(axis), run.grid.degree(axis));
  }
  text += fmt::format(" --order {} --schedule {}", run.grid.order(), run.schedule);
  if (run.virtual_stages > 1) text += fmt::format(" --virtual-stages {}", run.virtual_stages);
  text += fmt::format(" --zero {}", run.zero);
  if (run.sequence_parallel) text += " --sequence-parallel";
  constexpr const char* kRecompute[] = {"none", "selective", "full"};
  text += fmt::format(" --recompute {} --micro-batch {} --global-batch {} --seq-len {} --dtype {}",
                      kRecompute[static_cast<int>(run.recompute)], run.micro_batch, run.global_batch, run.seq_len,
                      name_of(run.dtype));
  return text;
}

std::string slurm(const RunConfig& run, const Cluster& cluster) {
  const int per_node = std::min(run.grid.world(), cluster.levels.empty() ? 1 : cluster.levels.front().size);
  std::string text = "#!/bin/bash\n#SBATCH --job-name=cuboid\n";
  text += fmt::format("#SBATCH --nodes={}\n#SBATCH --ntasks={}\n#SBATCH --ntasks-per-node={}\n",
                      (run.grid.world() + per_node - 1) / per_node, run.grid.world(), per_node);
  text += "#SBATCH --exclusive\n\n# Data, steps and output are yours to add.\n";
  text += fmt::format("srun --kill-on-bad-exit=1 cuboid train {} \"$@\"\n", flags_of(run));
  return text;
}

}  // namespace

void restrict_to(EmitFormat format, PlanRequest& request) {
  switch (format) {
    case EmitFormat::megatron:
      request.schedules = {"1f1b", "interleaved-1f1b"};
      request.zero_stages = {0, 1};
      return;
    case EmitFormat::torchtitan:
      request.schedules = {"1f1b", "interleaved-1f1b", "zb-v"};
      request.zero_stages = {0, 3};
      // It shards parameters over context ranks whatever is asked, and its expert groups take them in.
      request.least_zero_with_context = 3;
      request.context_with_experts = false;
      return;
    case EmitFormat::deepspeed:
      request.schedules = {"1f1b"};
      request.largest_zero_with_pipeline = 1;
      request.largest_ep = request.largest_cp = 1;  // the model's own code must do it there
      return;
    default:
      return;
  }
}

std::string emit(EmitFormat format, const RunConfig& run, const ModelConfig& model, const Cluster& cluster) {
  switch (format) {
    case EmitFormat::megatron:
      return megatron(run, model);
    case EmitFormat::torchtitan:
      return torchtitan(run);
    case EmitFormat::deepspeed:
      return deepspeed(run);
    case EmitFormat::slurm:
      return slurm(run, cluster);
    case EmitFormat::cuboid:
      return write_run_file(run);
    default:
      return "";
  }
}

}  // namespace cuboid::launch
