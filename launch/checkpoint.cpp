// cuboid checkpoint ACTION: looks into checkpoints, checks and converts them.
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/text.h"
#include "cuboid/core/units.h"
#include "cuboid/train/convert.h"

#include "launch/commands.h"
#include "launch/flags.h"

namespace cuboid::launch {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kUsage =
    "cuboid checkpoint inspect|verify PATH [--json]\n"
    "       cuboid checkpoint diff A B [--json]\n"
    "       cuboid checkpoint reshard|to-hf|from-hf FROM TO [--file-bytes BYTES]";
constexpr const char* kSummary =
    "PATH is a checkpoint, or a run's folder (its latest checkpoint). inspect: what is in it. verify: reads every "
    "byte\n"
    "and names damaged tensors (status 3). Both also take a .safetensors file or a Hugging Face folder. diff: the "
    "first\n"
    "tensor and element that differ (status 1). reshard: the same with whole tensors in few files. to-hf, from-hf:\n"
    "to and from a Hugging Face folder.";

struct Request {
  std::vector<std::string> paths;
  std::int64_t file_bytes = kDefaultFileBytes;
  bool json = false;
};

/// A checkpoint, or weights of Hugging Face's formats.
bool is_hugging_face(const std::string& path) {
  if (path.ends_with(".safetensors")) return true;
  std::error_code ignored;
  return !Checkpoint::find(path) && (fs::exists(fs::path(path) / "model.safetensors", ignored) ||
                                     fs::exists(fs::path(path) / "model.safetensors.index.json", ignored));
}

Json describe(const Checkpoint& checkpoint) {
  const CheckpointIndex& index = checkpoint.index();
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;
  std::size_t slices = 0;
  for (const auto& [name, tensor] : index.tensors) {
    if (name.starts_with(kWeights)) parameters += tensor.shape.elements();
    slices += tensor.slices.size();
  }
  for (const auto& [name, file] : index.files) bytes += file.bytes;
  Json document = {{"path", checkpoint.path()},
                   {"step", index.step},
                   {"samples", index.samples},
                   {"seed", index.seed},
                   {"optimizer_steps", index.optimizer_steps},
                   {"loss", index.loss},
                   {"family", checkpoint.model().family},
                   {"parameters", parameters},
                   {"tensors", index.tensors.size()},
                   {"slices", slices},
                   {"files", index.files.size()},
                   {"bytes", bytes}};
  if (const RunConfig* run = checkpoint.run()) {
    Json grid;
    for (const Axis axis : kAxes) grid[name_of(axis)] = run->grid.degree(axis);
    document["grid"] = grid;
    document["zero"] = run->zero;
  }
  return document;
}

Json describe(const WeightFolder& folder) {
  std::int64_t elements = 0;
  Json tensors = Json::object();
  for (const std::string& name : folder.names()) {
    const WeightTensor tensor = folder.at(name);
    elements += tensor.shape().elements();
    tensors[name] = {{"dtype", name_of(tensor.type())}, {"shape", tensor.shape().dims()}};
  }
  return {{"path", folder.path()}, {"elements", elements}, {"tensors", std::move(tensors)}};
}

// "tp 2, cp 1" of an object, bytes with their unit, the rest as it is.
std::string text_of(const std::string& key, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (key == "bytes") return fmt::format("{} ({})", value.dump(), human_bytes(value.get<std::uint64_t>()));
  if (value.is_null()) return "unknown";
  if (!value.is_object()) return value.dump();
  std::vector<std::string> parts;
  for (const auto& [name, part] : value.items()) parts.push_back(fmt::format("{} {}", name, part.dump()));
  return join(parts);
}

void print(const Json& document, bool json) {
  if (json) return fmt::print("{}\n", document.dump(2));
  for (const auto& [key, value] : document.items()) {
    if (key == "tensors" && value.is_object()) {
      for (const auto& [name, tensor] : value.items()) {
        fmt::print("  {:<52} {:<5} {}\n", name, tensor["dtype"].get<std::string>(), tensor["shape"].dump());
      }
      continue;
    }
    fmt::print("{:<18}{}\n", spaced(key), text_of(key, value));
  }
}

int inspect(const Request& request) {
  const std::string& path = request.paths[0];
  print(is_hugging_face(path) ? describe(WeightFolder::open(path)) : describe(Checkpoint::open(path)), request.json);
  return 0;
}

// Weights have no checksums: their headers are checked when they are opened, and numbers that are none are found here.
std::vector<std::string> faults_of(const WeightFolder& folder) {
  std::vector<std::string> faults;
  constexpr std::int64_t kStretch = 1 << 16;
  std::vector<float> values(kStretch);
  for (const std::string& name : folder.names()) {
    const WeightTensor tensor = folder.at(name);
    const std::int64_t elements = tensor.shape().elements();
    for (std::int64_t at = 0; at < elements; at += kStretch) {
      const std::int64_t count = std::min(kStretch, elements - at);
      tensor.read_float32(at, count, values.data());
      const auto bad = std::find_if(values.begin(), values.begin() + count, [](float v) { return !std::isfinite(v); });
      if (bad == values.begin() + count) continue;
      faults.push_back(
          fmt::format("{}: tensor {}: element {} is {}", tensor.path(), name, at + (bad - values.begin()), *bad));
      break;
    }
  }
  return faults;
}

int verify(const Request& request) {
  const std::string& path = request.paths[0];
  const bool weights = is_hugging_face(path);
  const std::vector<std::string> faults =
      weights ? faults_of(WeightFolder::open(path)) : Checkpoint::open(path).verify();
  if (request.json) {
    print({{"path", path}, {"sound", faults.empty()}, {"faults", faults}}, true);
  } else if (faults.empty()) {
    fmt::print("{}: {}\n", path,
               weights ? "headers are sound, all numbers finite (the format has no checksums)"
                       : "every byte is as it was written");
  }
  if (!faults.empty()) throw Error(ErrorKind::failed, join(faults, "\n"));
  return 0;
}

int diff(const Request& request) {
  const auto difference = first_difference(Checkpoint::open(request.paths[0]), Checkpoint::open(request.paths[1]));
  if (request.json) {
    Json document = {{"equal", !difference.has_value()}};
    if (difference) {
      document["tensor"] = difference->tensor;
      document["difference"] = difference->what;
      document["elements"] = difference->elements;
    }
    print(document, true);
  } else if (difference) {
    fmt::print("{}: {}", difference->tensor, difference->what);
    if (difference->elements > 1) fmt::print("; {} elements of it differ", difference->elements);
    fmt::print("\n");
  } else {
    fmt::print("equal\n");
  }
  return difference ? 1 : 0;
}

// What was written, to people and machines.
int told(const Request& request) {
  std::uint64_t bytes = 0;
  std::size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(request.paths[1])) {
    if (!entry.is_regular_file()) continue;
    bytes += entry.file_size();
    ++files;
  }
  print({{"path", request.paths[1]}, {"files", files}, {"bytes", bytes}}, request.json);
  return 0;
}

int to_hf(const Request& request) {
  export_hugging_face(Checkpoint::open(request.paths[0]), request.paths[1], request.file_bytes);
  return told(request);
}

int from_hf(const Request& request) {
  import_hugging_face(request.paths[0], request.paths[1], request.file_bytes);
  return told(request);
}

int rewrite(const Request& request) {
  reshard(Checkpoint::open(request.paths[0]), request.paths[1], request.file_bytes);
  return told(request);
}

struct Action {
  const char* name;
  std::size_t paths;
  int (*run)(const Request&);
};
constexpr Action kActions[] = {{"inspect", 1, inspect}, {"verify", 1, verify}, {"reshard", 2, rewrite},
                               {"diff", 2, diff},       {"to-hf", 2, to_hf},   {"from-hf", 2, from_hf}};

}  // namespace

int checkpoint_command(const Arguments& arguments) {
  Flags flags(kUsage, kSummary);
  Request request;
  flags.bytes("file-bytes", request.file_bytes, "largest file that is written, unless one tensor is larger");
  flags.toggle("json", request.json, "print one JSON document on standard output");
  // Words come before flags.
  const auto first_flag =
      std::find_if(arguments.begin(), arguments.end(), [](const std::string& word) { return word.starts_with("-"); });
  std::vector<std::string> words(arguments.begin(), first_flag);
  Problems problems;
  if (!flags.read({first_flag, arguments.end()}, problems)) return 0;
  std::vector<std::string> names;
  const Action* chosen = nullptr;
  for (const Action& action : kActions) {
    names.emplace_back(action.name);
    if (!words.empty() && words.front() == action.name) chosen = &action;
  }
  if (chosen == nullptr) {
    problems.add(words.empty() ? "checkpoint: say what to do: " + join(names)
                               : fmt::format("checkpoint {}: did you mean {}? The actions are {}", words.front(),
                                             nearest(words.front(), names), join(names)));
  } else {
    const std::string action = chosen->name;
    problems.add_if(words.size() != chosen->paths + 1,
                    fmt::format("checkpoint {}: needs {}, {} given", action,
                                counted(static_cast<long long>(chosen->paths), "path"), words.size() - 1));
    const bool writes = action == "reshard" || action == "to-hf" || action == "from-hf";
    problems.add_if(!writes && flags.value_of("file-bytes"),
                    fmt::format("--file-bytes: checkpoint {} writes no file", action));
  }
  problems.throw_if_any();
  request.paths.assign(words.begin() + 1, words.end());
  return chosen->run(request);
}

}  // namespace cuboid::launch
