#include "launch/train_flags.h"

#include <fmt/format.h>

#include "cuboid/core/text.h"
#include "cuboid/formats/run_file.h"
#include "cuboid/parallel/pipeline/generators.h"
#include "cuboid/train/check.h"

namespace cuboid::launch {
namespace {

std::vector<int> parse_stage_layers(const std::string& text) {
  std::vector<int> layers;
  std::size_t begin = 0;
  while (true) {
    const auto comma = text.find(',', begin);
    layers.push_back(static_cast<int>(Flags::parse_whole(text.substr(begin, comma - begin), 1, Flags::kMost<int>)));
    if (comma == std::string::npos) return layers;
    begin = comma + 1;
  }
}

void add_model_and_data_flags(Flags& flags, RunConfig& run) {
  flags.section("Model");
  flags.text("model", "M", run.model,
             "preset name (see `cuboid models`), a Hugging Face config.json, or a folder with one");
  flags.text("weights", "DIR", run.weights,
             "start from Hugging Face safetensors; without it weights are drawn from --seed");

  flags.section("Data");
  flags.add(
      "data", "PATH...", "",
      "text files or folders of them (a token a byte), .bin token files (uint16) or Megatron prefixes: one stream; or "
      "a blend: WEIGHT PATH WEIGHT PATH...",
      [&run](const Flags::Values& v) { run.data.paths = v; }, true);
  flags.choice<DataFormat>("data-format", run.data.format,
                           {{"auto", DataFormat::automatic},
                            {"text", DataFormat::text},
                            {"bin", DataFormat::bin},
                            {"megatron", DataFormat::megatron}},
                           "what the files hold; auto looks at each file's name and header");
  flags.choice<DataOrder>("data-order", run.data.order,
                          {{"sequential", DataOrder::sequential}, {"shuffled", DataOrder::shuffled}},
                          "order of the samples of an epoch");
  flags.real("validation-fraction", run.data.validation_fraction, "last part of the data, kept from training", "F");
  flags.whole("eval-every", run.data.eval_every, "steps between validation losses; 0: never", 0);
  flags.add("mask-token", "ID", "", "targets with this id are left out of the loss", [&run](const Flags::Values& v) {
    run.data.mask_token = Flags::parse_whole(v.front(), 0, Flags::kMost<std::int32_t>);
  });
  flags.text("mask-file", "FILE", run.data.mask_file,
             "a byte a token of the data; 0: left out of the loss as a target");
}

void add_grid_flags(Flags& flags, RunDraft& draft) {
  flags.section("Grid (ranks = tp x cp x ep x dp x pp)");
  flags.whole("tp", draft.degrees[Axis::tp], "tensor parallel degree", 1);
  flags.whole("pp", draft.degrees[Axis::pp], "pipeline parallel degree: ranks that hold a stage each", 1);
  flags.whole("dp", draft.degrees[Axis::dp], "data parallel degree", 1);
  flags.whole("cp", draft.degrees[Axis::cp], "context parallel degree: two chunks of every sequence a rank", 1);
  flags.whole("ep", draft.degrees[Axis::ep],
              "expert parallel degree: ranks that share out a model's experts, and the batch as with dp", 1);
  flags.text("order", "AXES", draft.order, "axes from the fastest-varying on: neighbouring ranks differ in the first");
  flags.text("schedule", "S", draft.run.schedule,
             "pipeline schedule: " + join(schedule_names()) +
                 ", auto (searched for the stages' costs), or file:PATH.csv (torch.distributed.pipelining's format)");
  flags.whole("virtual-stages", draft.run.virtual_stages, "stages a rank; 0: the schedule's own number", 0);
  flags.whole("max-activations", draft.run.max_activations,
              "most micro-batches of one stage that a rank may hold; 0: any number", 0);
  flags.add("stage-layers", "N,N,...", "", "layers of each stage; without it stages are balanced by cost",
            [&draft](const Flags::Values& v) { draft.run.stage_layers = parse_stage_layers(v.front()); });
  flags.choice<Balance>("balance", draft.run.balance, {{"flops", Balance::flops}, {"measured", Balance::measured}},
                        "costs by which stages are balanced and auto searches: the model's arithmetic, or a short "
                        "profile before the first step");
  flags.whole(
      "zero", draft.run.zero,
      "ZeRO stage over the ranks that hold copies: 1 shards optimizer state, 2 also gradients, 3 also parameters", 0,
      3);
  flags.bytes("bucket-bytes", draft.run.bucket_bytes,
              "gradients reduced and parameters gathered together, as bytes of float32");
  flags.toggle("sequence-parallel", draft.run.sequence_parallel,
               "split norms, dropout and residuals along the sequence over the tp ranks");
}

void add_training_flags(Flags& flags, RunConfig& run) {
  flags.section("Training");
  flags.whole("steps", run.steps, "optimizer steps", 1);
  flags.whole("global-batch", run.global_batch, "sequences a step, over all ranks", 1);
  flags.whole("micro-batch", run.micro_batch, "sequences a rank computes at a time", 1);
  flags.whole("seq-len", run.seq_len, "tokens of a sequence", 1);
  const std::vector<std::pair<std::string, DType>> dtypes = {{"float32", DType::float32},
                                                             {"bfloat16", DType::bfloat16}};
  flags.choice<DType>(
      "dtype", run.dtype, dtypes,
      "type of activations and of the weights as they are computed with; with bfloat16, master weights, "
      "gradients and optimizer state stay float32");
  flags.choice<DType>(
      "reduce-dtype", run.reduce_dtype, dtypes,
      "type in which ranks send each other what they add up; bfloat16 halves the bytes and rounds twice");
  flags.choice<Recompute>(
      "recompute", run.recompute,
      {{"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}},
      "activations computed again in backward: none, selective (outputs of norms and activation functions), or full "
      "(all but each layer's input)");
  flags.whole("seed", run.seed, "of weights, dropout and data order", 0);
  flags.real("dropout", run.dropout, "probability that an activation is dropped", "P");
  flags.real("router-aux-loss", run.router_aux_loss,
             "coefficient of the load-balancing loss of experts' routers (Switch Transformers); 0: none",
             "COEFFICIENT");
  flags.real("router-z-loss", run.router_z_loss,
             "coefficient of the mean squared log-sum-exp of router logits (ST-MoE); 0: none", "COEFFICIENT");
  flags.choice<OptimizerKind>("optimizer", run.optimizer.kind,
                              {{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}}, "update rule");
  flags.real("lr", run.optimizer.lr, "learning rate after warm-up");
  flags.real("min-lr", run.optimizer.min_lr, "learning rate at the end of a cosine or linear decay");
  flags.whole("warmup-steps", run.optimizer.warmup_steps, "steps over which the rate grows from 0", 0);
  flags.choice<LrSchedule>(
      "lr-schedule", run.optimizer.lr_schedule,
      {{"constant", LrSchedule::constant}, {"cosine", LrSchedule::cosine}, {"linear", LrSchedule::linear}},
      "course of the learning rate after warm-up");
  flags.real("weight-decay", run.optimizer.weight_decay, "decoupled decay of matrices and embeddings");
  flags.real("beta1", run.optimizer.beta1, "adamw: decay of the first moment");
  flags.real("beta2", run.optimizer.beta2, "adamw: decay of the second moment");
  flags.real("eps", run.optimizer.eps, "adamw: added to the root of the second moment");
  flags.real("clip-grad", run.optimizer.clip_grad, "largest global gradient norm; 0: no clipping");
}

void add_machine_flags(Flags& flags, RunDraft& draft) {
  RunConfig& run = draft.run;
  flags.section("Machine");
  flags.whole("threads-per-rank", run.threads_per_rank, "threads of a rank's matrix products", 1, 1024);
  flags.bytes("memory-limit", run.memory_limit,
              "most that a rank may hold: more is refused before the start, or ends the run",
              "what the machine, or with --device cuda a GPU, has, for all ranks on it");
  flags.real("deadline", run.deadline, "longest wait for another rank, in seconds", "SECONDS");
  add_device_flag(flags, draft.device);
  flags.choice<FabricKind>(
      "fabric", draft.fabric,
      {{"auto", FabricKind::automatic}, {"threads", FabricKind::threads}, {"mpi", FabricKind::mpi}},
      "how ranks reach each other: as threads of one process, or over MPI; auto: mpi under mpirun or srun");
  flags.whole("ranks-per-process", draft.ranks_per_process, "over MPI: ranks that are threads of one process", 1, 1024);

  flags.section("Output");
  flags.text("out", "DIR", run.out, "folder of metrics.jsonl, run.toml and timeline.json");
  flags.whole("checkpoint-every", run.checkpoint_every,
              "steps between checkpoints in DIR/checkpoints; 0: only when told to stop", 0);
  flags.whole("keep", run.keep, "newest checkpoints kept; 0: all", 0);
  flags.toggle("async-save", run.async_save,
               "write checkpoints while training goes on; takes memory for a copy of weights and moments");
  flags.real("max-seconds", run.max_seconds, "save and stop at the first step boundary after this time; 0: no limit",
             "SECONDS");
  flags.toggle("timeline", run.timeline, "write DIR/timeline.json (Chrome trace format: open it in Perfetto)");
  flags.text("dump-grads", "FILE", run.dump_grads,
             "write the L2 norm of each parameter's gradient at the first step, by Hugging Face name, as JSON");
  flags.toggle("stop-on-nan", run.stop_on_nan, "end with status 3 when a loss or gradient is not a number");
}

void take_run(RunDraft& draft, const RunConfig& run) {
  draft.run = run;
  draft.degrees = run.grid.degrees();
  draft.order = run.grid.order();
}

// What --resume asks for; without --config the run that wrote it.
void find_checkpoint(const Flags& flags, RunDraft& draft, Problems& problems) {
  const auto asked = flags.value_of("resume");
  if (!asked) return;
  std::string path = *asked;
  if (path == "auto") {
    path = flags.value_of("out").value_or(draft.run.out);
    if (path.empty())
      return problems.add("--resume auto: needs --out, the folder of the run that may have been started");
    if (!Checkpoint::find(path)) return;
  }
  try {
    draft.checkpoint = Checkpoint::open(path);
  } catch (const Error& error) {
    return problems.add(std::string("--resume ") + error.what());
  }
  if (draft.checkpoint->run() && !flags.value_of("config")) take_run(draft, *draft.checkpoint->run());
}

}  // namespace

void add_run_flags(Flags& flags, RunDraft& draft) {
  add_model_and_data_flags(flags, draft.run);
  add_grid_flags(flags, draft);
  add_training_flags(flags, draft.run);
  add_machine_flags(flags, draft);
  flags.text(
      "resume", "auto|DIR", draft.resume,
      "go on from a checkpoint, on this grid: that of --out if there is one (auto), or that in a folder; the stored "
      "run's settings hold where no flag or --config says otherwise");
  flags.add("config", "run.toml", "", "read the run from this file (as written to DIR/run.toml); flags override it",
            [](const Flags::Values&) {});
}

RunConfig read_run(Flags& flags, RunDraft& draft, const std::vector<std::string>& arguments, Problems& problems) {
  flags.parse(arguments, problems);
  if (flags.help_wanted()) return draft.run;
  if (const auto file = flags.value_of("config")) {
    try {
      take_run(draft, read_run_file(*file));
    } catch (const Error& error) {
      problems.add(error.what());
    }
  }
  find_checkpoint(flags, draft, problems);
  flags.apply(problems);
  try {
    draft.run.grid = Grid(draft.degrees, draft.order);
  } catch (const Error& error) {
    problems.add(error.what());
  }
  return draft.run;
}

}  // namespace cuboid::launch
