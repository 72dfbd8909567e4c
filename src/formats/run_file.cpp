#include "cuboid/formats/run_file.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/mapped_file.h"

#include "toml_text.h"

namespace cuboid {
namespace {

/// A setting with a fixed set of names.
template <typename Enum>
struct Choice {
  Enum value;
  const char* name;
};
constexpr Choice<DataFormat> kDataFormats[] = {{DataFormat::automatic, "auto"},
                                               {DataFormat::text, "text"},
                                               {DataFormat::bin, "bin"},
                                               {DataFormat::megatron, "megatron"}};
constexpr Choice<DataOrder> kDataOrders[] = {{DataOrder::sequential, "sequential"}, {DataOrder::shuffled, "shuffled"}};
constexpr Choice<DType> kDTypes[] = {{DType::float32, "float32"}, {DType::bfloat16, "bfloat16"}};
constexpr Choice<Recompute> kRecompute[] = {
    {Recompute::none, "none"}, {Recompute::selective, "selective"}, {Recompute::full, "full"}};
constexpr Choice<Balance> kBalances[] = {{Balance::flops, "flops"}, {Balance::measured, "measured"}};
constexpr Choice<OptimizerKind> kOptimizers[] = {{OptimizerKind::adamw, "adamw"}, {OptimizerKind::sgd, "sgd"}};
constexpr Choice<LrSchedule> kLrSchedules[] = {
    {LrSchedule::constant, "constant"}, {LrSchedule::cosine, "cosine"}, {LrSchedule::linear, "linear"}};

/// Every setting once: key, meaning, place. The writer and the reader are visitors of this list, so neither can know a
/// key that the other does not.
template <typename Visitor>
void visit_settings(RunConfig& run, AxisValues& degrees, std::string& order, Visitor& visit) {
  visit.section("Model");
  visit("model", "preset, config.json, or a folder that holds one", run.model);
  visit("weights", "folder of Hugging Face safetensors; empty: initialised from seed", run.weights);
  visit.section("Data");
  visit("data", "text files or folders, .bin token files, Megatron prefixes; or weight, path, weight, path",
        run.data.paths);
  visit("data-format", "auto, text, bin or megatron", run.data.format, kDataFormats);
  visit("data-order", "sequential or shuffled", run.data.order, kDataOrders);
  visit("validation-fraction", "last part of the samples that is held out", run.data.validation_fraction);
  visit("eval-every", "steps between validation losses; 0: never", run.data.eval_every);
  visit("mask-token", "targets equal to this id are left out of the loss", run.data.mask_token);
  visit("mask-file", "one byte a token, 0: target left out of the loss; empty: none", run.data.mask_file);
  visit.section("Process grid");
  visit("tp", "tensor parallel ranks", degrees[Axis::tp]);
  visit("pp", "pipeline parallel ranks", degrees[Axis::pp]);
  visit("dp", "data parallel ranks", degrees[Axis::dp]);
  visit("cp", "context parallel ranks", degrees[Axis::cp]);
  visit("ep", "expert parallel ranks", degrees[Axis::ep]);
  visit("order", "axis order, the first changes fastest with the rank", order);
  visit("sequence-parallel", "split activations between tensor parallel regions along the sequence",
        run.sequence_parallel);
  visit("zero", "ZeRO stage over the ranks that hold copies", run.zero);
  visit("bucket-bytes", "gradients reduced and parameters gathered together, bytes of float32", run.bucket_bytes);
  visit.section("Pipeline");
  visit("schedule", "pipeline schedule", run.schedule);
  visit("virtual-stages", "stages a rank; 0: the schedule's own number", run.virtual_stages);
  visit("max-activations", "most micro-batches of one stage that a rank may hold; 0: any number", run.max_activations);
  visit("stage-layers", "layers of each stage; empty: balanced by cost", run.stage_layers);
  visit("balance", "costs that stages are balanced by: flops or measured", run.balance, kBalances);
  visit.section("Training");
  visit("dtype", "compute type, float32 or bfloat16", run.dtype, kDTypes);
  visit("reduce-dtype", "type of sums between ranks, float32, or bfloat16 to halve their bytes", run.reduce_dtype,
        kDTypes);
  visit("recompute", "activations computed again in backward: none, selective or full", run.recompute, kRecompute);
  visit("micro-batch", "samples a rank computes at once", run.micro_batch);
  visit("global-batch", "samples a step, over all ranks", run.global_batch);
  visit("seq-len", "tokens a sample", run.seq_len);
  visit("steps", "optimizer steps", run.steps);
  visit("seed", "of weights, dropout and shuffling", run.seed);
  visit("dropout", "probability", run.dropout);
  visit("router-aux-loss", "coefficient of the load-balancing loss of routers", run.router_aux_loss);
  visit("router-z-loss", "coefficient of the loss on the size of router logits", run.router_z_loss);
  visit.section("Optimizer");
  visit("optimizer", "adamw or sgd", run.optimizer.kind, kOptimizers);
  visit("lr", "peak learning rate", run.optimizer.lr);
  visit("min-lr", "learning rate at the end of the decay", run.optimizer.min_lr);
  visit("warmup-steps", "steps of linear increase to lr", run.optimizer.warmup_steps);
  visit("lr-schedule", "constant, cosine or linear", run.optimizer.lr_schedule, kLrSchedules);
  visit("weight-decay", "decoupled; on matrices and embeddings", run.optimizer.weight_decay);
  visit("beta1", "decay of the first moment", run.optimizer.beta1);
  visit("beta2", "decay of the second moment", run.optimizer.beta2);
  visit("eps", "added to the root of the second moment", run.optimizer.eps);
  visit("clip-grad", "largest global gradient norm; 0: no clipping", run.optimizer.clip_grad);
  visit.section("Run");
  visit("threads-per-rank", "OpenMP threads of a rank", run.threads_per_rank);
  visit("memory-limit", "most bytes a rank may hold; 0: what the machine has for all of its ranks", run.memory_limit);
  visit("deadline", "longest wait for another rank, in seconds", run.deadline);
  visit("stop-on-nan", "end with status 3 at a loss or gradient that is not a number", run.stop_on_nan);
  visit("timeline", "write timeline.json into out (Chrome trace format)", run.timeline);
  visit("checkpoint-every", "steps between checkpoints in out; 0: only when told to stop", run.checkpoint_every);
  visit("keep", "newest checkpoints kept; 0: all", run.keep);
  visit("async-save", "write checkpoints while training goes on", run.async_save);
  visit("max-seconds", "save and stop at the first step boundary after this time; 0: no limit", run.max_seconds);
  visit("out", "folder of metrics.jsonl, run.toml and timeline.json; empty: none", run.out);
  visit("dump-grads", "file for the first step's gradient norms; empty: none", run.dump_grads);
}

class Writer {
 public:
  void section(const char* title) { text_ += fmt::format("\n# {}\n", title); }

  template <typename Value>
  void operator()(const char* key, const char* meaning, const Value& value) {
    if (const std::string written = write(value); !written.empty()) line(key, written, meaning);
  }
  template <typename Enum, std::size_t n>
  void operator()(const char* key, const char* meaning, const Enum& value, const Choice<Enum> (&choices)[n]) {
    for (const auto& choice : choices) {
      if (choice.value == value) return line(key, toml_string(choice.name), meaning);
    }
    contract_violation("value has a name", __FILE__, __LINE__, key);
  }
  std::string take() { return std::move(text_); }

 private:
  void line(const char* key, const std::string& value, const char* meaning) {
    text_ += fmt::format("{:<36}# {}\n", fmt::format("{} = {}", key, value), meaning);
  }

  // Empty: the setting is absent.
  static std::string write(const std::string& value) { return toml_string(value); }
  static std::string write(bool value) { return value ? "true" : "false"; }
  static std::string write(int value) { return std::to_string(value); }
  static std::string write(std::int64_t value) { return std::to_string(value); }
  static std::string write(double value) { return exact(value); }
  static std::string write(std::uint64_t value) {
    // TOML's integers end at 2^63 - 1.
    const auto text = std::to_string(value);
    return value <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ? text : toml_string(text);
  }
  static std::string write(const std::optional<std::int64_t>& value) { return value ? std::to_string(*value) : ""; }
  static std::string write(const std::vector<int>& values) { return fmt::format("[{}]", fmt::join(values, ", ")); }
  static std::string write(const std::vector<std::string>& values) {
    std::vector<std::string> items;
    for (const auto& value : values) items.push_back(toml_string(value));
    return "[" + join(items) + "]";
  }

  std::string text_;
};

/// Every setting as text, for comparisons.
class Lister {
 public:
  void section(const char* title) { section_ = title; }
  template <typename... Value>
  void operator()(const char* key, const char* meaning, const Value&... value) {
    Writer writer;
    writer(key, meaning, value...);
    std::string line = writer.take();
    line.erase(std::min(line.size(), line.rfind(fmt::format("# {}\n", meaning))));
    line.erase(line.find_last_not_of(' ') + 1);
    const std::size_t equals = line.find('=');
    rows.push_back({section_, key, equals == std::string::npos ? "(none)" : line.substr(equals + 2)});
  }
  struct Row {
    std::string section, key, value;
  };
  std::vector<Row> rows;

 private:
  std::string section_;
};

std::vector<Lister::Row> list_settings(RunConfig run) {
  AxisValues degrees = run.grid.degrees();
  std::string order = run.grid.order();
  Lister lister;
  visit_settings(run, degrees, order, lister);
  return std::move(lister.rows);
}

class Reader {
 public:
  explicit Reader(const toml::table& table) : table_(table) {}

  void section(const char* /*title*/) {}

  template <typename Value>
  void operator()(const char* key, const char* /*meaning*/, Value& value) {
    keys_.emplace_back(key);
    if (const toml::node* node = table_.get(key)) read(*node, key, value);
  }
  template <typename Enum, std::size_t n>
  void operator()(const char* key, const char* /*meaning*/, Enum& value, const Choice<Enum> (&choices)[n]) {
    keys_.emplace_back(key);
    const toml::node* node = table_.get(key);
    if (node == nullptr) return;
    std::vector<std::string> names;
    for (const auto& choice : choices) {
      if (node->value_exact<std::string>() == choice.name) {
        value = choice.value;
        return;
      }
      names.push_back('"' + std::string(choice.name) + '"');
    }
    fault(*node, key, "must be " + join(names, " or "));
  }

  /// All faults in the order of the lines, those of unknown keys among them.
  void report(const std::string& source, Problems& problems) {
    refuse_unknown();
    for (const auto& [line, reason] : faults_) problems.add(fmt::format("{}: line {}: {}", source, line, reason));
  }

 private:
  void refuse_unknown() {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(keys_.begin(), keys_.end(), name) != keys_.end()) continue;
      faults_.emplace(key.source().begin.line,
                      fmt::format("unknown key {}; the nearest is {}", name, nearest(name, keys_)));
    }
  }

  void fault(const toml::node& node, const char* key, const std::string& reason) {
    faults_.emplace(node.source().begin.line, fmt::format("{} = {}: {}", key, toml_excerpt(node), reason));
  }

  void read(const toml::node& node, const char* key, std::string& value) {
    if (const auto text = node.value_exact<std::string>()) {
      value = *text;
    } else {
      fault(node, key, "must be a string");
    }
  }
  void read(const toml::node& node, const char* key, bool& value) {
    if (const auto flag = node.value_exact<bool>()) {
      value = *flag;
    } else {
      fault(node, key, "must be true or false");
    }
  }
  void read(const toml::node& node, const char* key, double& value) {
    // A whole number may be written without its point.
    const auto number = node.is_integer() ? node.value<double>() : node.value_exact<double>();
    if (number && std::isfinite(*number)) {
      value = *number;
    } else {
      fault(node, key, "must be a finite number");
    }
  }
  void read(const toml::node& node, const char* key, int& value) {
    const auto number = node.value_exact<std::int64_t>();
    if (number && *number >= std::numeric_limits<int>::min() && *number <= std::numeric_limits<int>::max()) {
      value = static_cast<int>(*number);
    } else {
      fault(node, key, "must be a whole number of 32 bits");
    }
  }
  void read(const toml::node& node, const char* key, std::int64_t& value) {
    if (const auto number = node.value_exact<std::int64_t>()) {
      value = *number;
    } else {
      fault(node, key, "must be a whole number");
    }
  }
  void read(const toml::node& node, const char* key, std::optional<std::int64_t>& value) {
    std::int64_t number = 0;
    read(node, key, number);
    value = number;
  }
  void read(const toml::node& node, const char* key, std::uint64_t& value) {
    if (const auto number = node.value_exact<std::int64_t>(); number && *number >= 0) {
      value = static_cast<std::uint64_t>(*number);
      return;
    }
    if (const auto text = node.value_exact<std::string>()) {
      const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
      if (error == std::errc() && end == text->data() + text->size()) return;
    }
    fault(node, key, "must be a whole number from 0 to 2^64 - 1 (from 2^63 on in quotes)");
  }
  template <typename Item>
  void read(const toml::node& node, const char* key, std::vector<Item>& value) {
    const toml::array* array = node.as_array();
    if (array == nullptr) return fault(node, key, "must be an array");
    value.clear();
    for (const toml::node& item : *array) read(item, key, value.emplace_back());
  }

  const toml::table& table_;
  std::vector<std::string> keys_;
  std::multimap<std::uint32_t, std::string> faults_;  ///< by line
};

}  // namespace

std::string write_run_file(const RunConfig& run) {
  Writer writer;
  RunConfig copy = run;  // visit_settings serves the reader too, so it takes references
  AxisValues degrees = run.grid.degrees();
  std::string order = run.grid.order();
  visit_settings(copy, degrees, order, writer);
  return "# A training run: `cuboid train --config FILE` repeats it. Keys are the flags of `cuboid train`.\n" +
         writer.take();
}

std::vector<SettingDifference> compare_runs(const RunConfig& stored, const RunConfig& now) {
  const auto before = list_settings(stored);
  const auto after = list_settings(now);
  std::vector<SettingDifference> differences;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const auto& [section, key, value] = before[i];
    if (value != after[i].value) differences.push_back({section, key, value, after[i].value});
  }
  return differences;
}

RunConfig parse_run_file(const std::string& text, const std::string& source) {
  const toml::table table = parse_toml(text, source);
  Problems problems;
  RunConfig run;
  AxisValues degrees = run.grid.degrees();
  std::string order = run.grid.order();
  Reader reader(table);
  visit_settings(run, degrees, order, reader);
  reader.report(source, problems);
  try {
    run.grid = Grid(degrees, order);
  } catch (const Error& error) {
    problems.add(source + ": " + error.what());
  }
  problems.throw_if_any();
  return run;
}

RunConfig read_run_file(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  return parse_run_file(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), path);
}

}  // namespace cuboid
