#include "cuboid/train/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cuboid/core/text.h"
#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/models/registry.h"
#include "cuboid/train/weights.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;

/// A folder that is built under another name and appears when it is complete.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path) : path_(fs::absolute(path).lexically_normal().string()) {
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
    std::error_code fault;
    if (fs::exists(path_, fault) && !(fs::is_directory(path_, fault) && fs::is_empty(path_, fault))) {
      throw Error(ErrorKind::request, path + ": exists; give a new or empty folder");
    }
    // Never emptied: it may be somebody's own.
    if (fs::exists(temporary(), fault)) {
      throw Error(ErrorKind::request,
                  fmt::format("{}: is built as {}, which exists; move or remove that", path, temporary()));
    }
    if (!fs::create_directories(temporary(), fault)) {
      throw Error(ErrorKind::request, fmt::format("{}: cannot be created: {}", path, fault.message()));
    }
  }
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(temporary(), ignored);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;

  std::string temporary() const { return path_ + ".tmp"; }
  void commit() const { replace_folder(temporary(), path_); }

 private:
  std::string path_;
};

/// Numbers of a global tensor on their way into files.
struct Whole {
  std::string name;
  Shape shape;
  std::vector<float> values;
};

/// Fills files with whole tensors up to a size.
class Files {
 public:
  explicit Files(std::int64_t limit) : limit_(limit) {}
  virtual ~Files() = default;

  void add(Whole tensor) {
    const auto bytes = static_cast<std::int64_t>(tensor.values.size() * sizeof(float));
    if (!tensors_.empty() && bytes_ + bytes > limit_) flush();
    bytes_ += bytes;
    tensors_.push_back(std::move(tensor));
  }
  void flush() {
    if (tensors_.empty()) return;
    write(tensors_);
    tensors_.clear();
    bytes_ = 0;
  }

 protected:
  virtual void write(const std::vector<Whole>& tensors) = 0;

 private:
  std::int64_t limit_;
  std::int64_t bytes_ = 0;
  std::vector<Whole> tensors_;
};

class CheckpointFiles : public Files {
 public:
  CheckpointFiles(std::string folder, std::int64_t limit) : Files(limit), folder_(std::move(folder)) {}
  CheckpointIndex index;

 private:
  void write(const std::vector<Whole>& tensors) override {
    std::vector<SliceToWrite> slices;
    for (const Whole& t : tensors) slices.push_back({t.name, t.shape, {0, t.shape.elements(), 0, 1}, t.values.data()});
    const std::string name = fmt::format("part_{:05}.safetensors", count_++);
    merge_index(index, write_checkpoint_file(folder_, name, slices));
  }
  std::string folder_;
  int count_ = 0;
};

class HuggingFaceFiles : public Files {
 public:
  HuggingFaceFiles(std::string folder, std::int64_t limit) : Files(limit), folder_(std::move(folder)) {}

  /// Gives the files the names that depend on their number, and writes the index of several.
  void finish() {
    flush();
    const std::size_t n = names_.size();
    const auto final_name = [&](std::size_t i) {
      return n == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, n);
    };
    nlohmann::ordered_json map = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < n; ++i) {
      fs::rename(fs::path(folder_) / partial_name(i), fs::path(folder_) / final_name(i));
      for (const std::string& tensor : names_[i]) map[tensor] = final_name(i);
    }
    if (n == 1) return;
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_}}}, {"weight_map", std::move(map)}};
    write_durably((fs::path(folder_) / "model.safetensors.index.json").string(), index.dump(2) + "\n");
  }

 private:
  static std::string partial_name(std::size_t i) { return fmt::format("part-{:05}", i); }
  void write(const std::vector<Whole>& tensors) override {
    std::vector<TensorToWrite> written;
    std::vector<std::string> names;
    for (const Whole& t : tensors) {
      written.push_back({t.name, StoredType::F32, t.shape, std::as_bytes(std::span(t.values))});
      names.push_back(t.name);
      total_ += written.back().bytes.size();
    }
    write_safetensors((fs::path(folder_) / partial_name(names_.size())).string(), written);
    names_.push_back(std::move(names));
  }
  std::string folder_;
  std::vector<std::vector<std::string>> names_;
  std::size_t total_ = 0;
};

// (rows, columns) → (columns, rows).
std::vector<float> transposed(const std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  std::vector<float> out(values.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      out[static_cast<std::size_t>(c * rows + r)] = values[static_cast<std::size_t>(r * columns + c)];
    }
  }
  return out;
}

std::string weights_of(const std::string& parameter) {
  return std::string(kWeights) + parameter;
}

// "(0,7)" of a flat index.
std::string position_in(const Shape& shape, std::int64_t element) {
  std::vector<std::int64_t> at(static_cast<std::size_t>(shape.rank()));
  for (int i = shape.rank() - 1; i >= 0; --i) {
    at[static_cast<std::size_t>(i)] = element % shape[i];
    element /= shape[i];
  }
  return to_string(Shape(at));
}

}  // namespace

void export_hugging_face(const Checkpoint& checkpoint, const std::string& folder, std::int64_t file_bytes) {
  const ModelConfig& model = checkpoint.model();
  const ParameterTable table = parameters_of(model);
  const NewFolder made(folder);
  HuggingFaceFiles files(made.temporary(), file_bytes);
  for (const HfTensor& hf : model_of(model).hugging_face_tensors(model)) {
    const ParameterInfo& info = table.at(hf.parameter);
    const CheckpointTensor* tensor = checkpoint.find_tensor(weights_of(hf.parameter));
    if (tensor == nullptr || tensor->shape != info.shape) {
      throw Error(ErrorKind::request, fmt::format("{}: does not hold {} as its model needs it", checkpoint.path(),
                                                  weights_of(hf.parameter)));
    }
    const std::int64_t inner = info.shape.elements() / info.shape[0];
    const Range rows = covered_rows(hf, info);
    std::vector<float> values(static_cast<std::size_t>(rows.count * inner));
    const WantedRun run{rows.begin * inner, rows.count * inner, 0};
    checkpoint.read(*tensor, {&run, 1}, values.data());
    if (hf.transposed) values = transposed(values, rows.count, inner);
    files.add({hf.hf_name, stored_shape(hf, info), std::move(values)});
  }
  files.finish();
  write_durably(made.temporary() + "/config.json", write_hf_config(model));
  made.commit();
}

void import_hugging_face(const std::string& from, const std::string& folder, std::int64_t file_bytes) {
  const ModelConfig model = load_model(from);
  const WeightFolder weights = WeightFolder::open(from);
  Problems problems;
  check_weights(weights, model, problems);
  problems.throw_if_any();
  const NewFolder made(folder);
  CheckpointFiles files(made.temporary(), file_bytes);
  const auto tensors = model_of(model).hugging_face_tensors(model);
  const ParameterTable table = parameters_of(model);
  for (const ParameterInfo& info : table.rows()) {
    if (!info.tied_with.empty()) continue;
    const std::int64_t inner = info.shape.elements() / info.shape[0];
    std::vector<float> values(static_cast<std::size_t>(info.shape.elements()));
    for (const HfTensor& hf : tensors) {
      if (hf.parameter != info.name) continue;
      const Range rows = covered_rows(hf, info);
      const WeightTensor tensor = weights.at(name_in(weights, hf.hf_name));
      float* into = values.data() + rows.begin * inner;
      tensor.read_float32(0, rows.count * inner, into);
      if (!hf.transposed) continue;
      const auto turned = transposed({into, into + rows.count * inner}, inner, rows.count);
      std::copy(turned.begin(), turned.end(), into);
    }
    files.add({weights_of(info.name), info.shape, std::move(values)});
  }
  files.flush();
  files.index.loss = std::nan("");
  write_checkpoint_end(made.temporary(), std::move(files.index), model, nullptr);
  made.commit();
}

void reshard(const Checkpoint& checkpoint, const std::string& folder, std::int64_t file_bytes) {
  const NewFolder made(folder);
  CheckpointFiles files(made.temporary(), file_bytes);
  for (const auto& [name, tensor] : checkpoint.index().tensors) {
    files.add({name, tensor.shape, checkpoint.read_whole(tensor)});
  }
  files.flush();
  CheckpointIndex index = checkpoint.index();
  index.tensors = std::move(files.index.tensors);
  index.files = std::move(files.index.files);
  write_checkpoint_end(made.temporary(), std::move(index), checkpoint.model(), checkpoint.run());
  made.commit();
}

std::optional<Difference> first_difference(const Checkpoint& a, const Checkpoint& b) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : a.index().tensors) names.insert(name);
  for (const auto& [name, tensor] : b.index().tensors) names.insert(name);
  for (const std::string& name : names) {
    const CheckpointTensor* in_a = a.find_tensor(name);
    const CheckpointTensor* in_b = b.find_tensor(name);
    if (!in_a || !in_b) return Difference{name, "is only in " + (in_a ? a.path() : b.path()), 0};
    if (in_a->shape != in_b->shape) {
      return Difference{name, fmt::format("has shapes {} and {}", to_string(in_a->shape), to_string(in_b->shape)), 0};
    }
    const std::vector<float> x = a.read_whole(*in_a);
    const std::vector<float> y = b.read_whole(*in_b);
    std::int64_t first = -1;
    std::int64_t count = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(x[i]) == std::bit_cast<std::uint32_t>(y[i])) continue;
      if (count++ == 0) first = static_cast<std::int64_t>(i);
    }
    if (count == 0) continue;
    return Difference{name,
                      fmt::format("element {} {} is {} and {}", first, position_in(in_a->shape, first),
                                  x[static_cast<std::size_t>(first)], y[static_cast<std::size_t>(first)]),
                      count};
  }
  return std::nullopt;
}

}  // namespace cuboid
