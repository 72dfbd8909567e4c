#include "cuboid/formats/published_runs.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cuboid/formats/mapped_file.h"

#include "json_text.h"

namespace cuboid {
namespace {

// Values of one object of an entry; what is missing or of the wrong kind becomes a problem.
class Fields {
 public:
  Fields(const Json& entry, const char* key, std::string where, Problems& problems)
      : where_(std::move(where)), problems_(problems) {
    const auto found = entry.is_object() ? entry.find(key) : entry.end();
    if (entry.is_object() && found != entry.end() && found->is_object()) {
      object_ = &*found;
    } else {
      problems_.add(fmt::format("{}: {} must be an object", where_, key));
    }
    where_ += fmt::format(": {}", key);
  }

  /// A whole number from 1 on; null or absent gives the fallback if there is one.
  std::int64_t whole(const char* key, std::optional<std::int64_t> fallback = std::nullopt) {
    const Json* value = find(key);
    if (value == nullptr && fallback) return *fallback;
    if (value != nullptr && value->is_number_integer() && value->get<std::int64_t>() >= (fallback ? *fallback : 1) &&
        value->get<std::int64_t>() < (std::int64_t{1} << 31)) {
      return value->get<std::int64_t>();
    }
    fault(key, value, fmt::format("must be a whole number from {} on", fallback ? *fallback : 1));
    return 1;
  }
  std::optional<double> positive(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_number() && value->get<double>() > 0) return value->get<double>();
    fault(key, value, "must be a number above 0, or null");
    return std::nullopt;
  }
  std::string text(const char* key, const std::string& fallback) {
    const Json* value = find(key);
    if (value == nullptr) return fallback;
    if (value->is_string()) return value->get<std::string>();
    fault(key, value, "must be a string, or null");
    return fallback;
  }
  bool flag(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) return false;
    if (value->is_boolean()) return value->get<bool>();
    fault(key, value, "must be true or false, or null");
    return false;
  }

 private:
  const Json* find(const char* key) const {
    if (object_ == nullptr) return nullptr;
    const auto found = object_->find(key);
    return found == object_->end() || found->is_null() ? nullptr : &*found;
  }
  void fault(const char* key, const Json* value, const std::string& allowed) {
    if (object_ == nullptr) return;  // reported once
    problems_.add(
        fmt::format("{}: {} {}: {}", where_, key, value == nullptr ? "is missing" : excerpt(*value), allowed));
  }

  const Json* object_ = nullptr;
  std::string where_;
  Problems& problems_;
};

ModelConfig read_model(Fields fields, int tp) {
  ModelConfig model;
  model.name = fields.text("name", "model");
  model.layers = fields.whole("layers");
  model.hidden = fields.whole("hidden");
  model.heads = fields.whole("heads");
  model.kv_heads = fields.whole("kv_heads");
  model.head_dim = model.hidden / model.heads;
  model.ffn = fields.whole("ffn");
  const std::int64_t unit = 128LL * tp;
  model.vocab = (fields.whole("vocab") + unit - 1) / unit * unit;
  model.positions = fields.whole("seq_len");
  const bool gated = fields.flag("gated_mlp");
  model.family = gated || model.kv_heads < model.heads ? "llama" : "gpt2";
  model.tied = model.family == "gpt2";
  if (!gated && model.family == "llama") model.ffn = model.ffn * 2 / 3;
  if (model.family == "gpt2") model.attention_bias = model.attention_output_bias = model.mlp_bias = true;
  return model;
}

void read_parallel(Fields fields, const std::string& where, RunConfig& run, Problems& problems) {
  AxisValues degrees{{1, 1, 1, 1, 1}};
  for (const Axis axis : kAxes) degrees[axis] = static_cast<int>(fields.whole(name_of(axis), 1));
  try {
    run.grid = Grid(degrees, fields.text("order", std::string(Grid::kDefaultOrder)));
  } catch (const Error& error) {
    problems.add(where + ": " + error.what());
  }
  run.virtual_stages = static_cast<int>(fields.whole("virtual_stages", 1));
  run.schedule = fields.text("schedule", run.virtual_stages > 1 ? "interleaved-1f1b" : "1f1b");
  if (run.schedule == "none") run.schedule = "1f1b";
  if (run.schedule == "zb-1p") run.schedule = "zb-h1";
  if (run.schedule == "zb-2p") run.schedule = "zb-h2";
  run.zero = static_cast<int>(fields.whole("zero_stage", 0));
  run.sequence_parallel = fields.flag("sequence_parallel");
  const std::string recompute = fields.text("recompute", "none");
  run.recompute = recompute == "full"        ? Recompute::full
                  : recompute == "selective" ? Recompute::selective
                                             : Recompute::none;
  problems.add_if(recompute != "full" && recompute != "selective" && recompute != "none",
                  fmt::format("{}: recompute {}: must be none, selective or full", where, recompute));
  run.micro_batch = static_cast<int>(fields.whole("micro_batch"));
  run.global_batch = static_cast<int>(fields.whole("global_batch"));
}

std::vector<int> layers_of_stages(std::int64_t layers, int stages) {
  if (layers % stages == 0)
    return std::vector<int>(static_cast<std::size_t>(stages), static_cast<int>(layers / stages));
  if ((layers + 2) % stages != 0 || layers < 2) return {};
  std::vector<int> split(static_cast<std::size_t>(stages), static_cast<int>((layers + 2) / stages));
  --split.front();
  --split.back();
  return split;
}

PublishedRun read_entry(const Json& entry, const std::string& where, Problems& problems) {
  PublishedRun out;
  const auto text = [&](const char* key) {
    const auto found = entry.find(key);
    return found != entry.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  out.id = text("id");
  problems.add_if(out.id.empty(), where + ": id is missing");
  out.precision = text("precision");
  out.note = text("doubt");
  out.source = Fields(entry, "source", where, problems).text("title", "");
  out.gpu = Fields(entry, "hardware", where, problems).text("gpu", "");
  read_parallel(Fields(entry, "parallel", where, problems), where, out.run, problems);
  out.model = read_model(Fields(entry, "model", where, problems), out.run.grid.degree(Axis::tp));
  out.run.model = out.model.name;
  out.run.seq_len = static_cast<int>(out.model.positions);
  out.run.dtype = DType::bfloat16;
  out.run.reduce_dtype = DType::bfloat16;
  out.run.stage_layers =
      layers_of_stages(out.model.layers, out.run.grid.degree(Axis::pp) * std::max(1, out.run.virtual_stages));
  if (const auto step = entry.find("step_seconds"); step != entry.end() && step->is_number()) {
    out.step_seconds = step->get<double>();
  }
  problems.add_if(out.step_seconds && !(*out.step_seconds > 0), where + ": step_seconds must be above 0, or null");
  if (const auto gib = Fields(entry, "measured", where, problems).positive("memory_gb")) {
    out.memory_bytes = *gib * 1024 * 1024 * 1024;
  }
  const auto failed = entry.find("out_of_memory");
  out.out_of_memory = failed != entry.end() && failed->is_boolean() && failed->get<bool>();
  return out;
}

}  // namespace

std::vector<PublishedRun> parse_published_runs(const std::string& text, const std::string& source) {
  Problems problems;
  const Json file = parse_json(text, source, problems);
  problems.add_if(problems.empty() && !file.is_array(), source + ": must be an array of runs, is " + kind_of(file));
  problems.throw_if_any();
  std::vector<PublishedRun> runs;
  for (std::size_t i = 0; i < file.size(); ++i) {
    const std::string where = fmt::format("{}: run {}", source, i + 1);
    if (file[i].is_object()) {
      runs.push_back(read_entry(file[i], where, problems));
    } else {
      problems.add(fmt::format("{}: must be an object, is {}", where, kind_of(file[i])));
    }
  }
  problems.throw_if_any();
  return runs;
}

std::vector<PublishedRun> read_published_runs(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  return parse_published_runs(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), path);
}

}  // namespace cuboid
