#include "cuboid/train/weights.h"

#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "cuboid/core/random.h"

namespace cuboid {
namespace {

// GPT-2's published files leave out the prefix that newer exports write.
constexpr std::string_view kGpt2Prefix = "transformer.";

// The shard's part of a tensor stored (in, out): whole stretches of stored rows, scattered into columns.
std::vector<float> read_transposed(const WeightTensor& tensor, const ParameterInfo& info, int rank, int size) {
  const std::int64_t outputs = info.shape[0];
  const Shape shape = shard_shape(info, rank, size);
  std::vector<float> values(static_cast<std::size_t>(shape.elements()));
  const auto rows = info.split_dim == 0 ? owned_ranges(info, rank, size) : std::vector<Range>{{0, info.shape[0]}};
  const auto columns = info.split_dim == 1 ? owned_ranges(info, rank, size) : std::vector<Range>{{0, info.shape[1]}};
  std::vector<float> stretch;
  std::int64_t local_column = 0;
  for (const Range& column : columns) {
    for (std::int64_t i = 0; i < column.count; ++i, ++local_column) {
      std::int64_t local_row = 0;
      for (const Range& row : rows) {
        stretch.resize(static_cast<std::size_t>(row.count));
        tensor.read_float32((column.begin + i) * outputs + row.begin, row.count, stretch.data());
        for (const float value : stretch) {
          values[static_cast<std::size_t>(local_row++ * shape[1] + local_column)] = value;
        }
      }
    }
  }
  return values;
}

void load_tensor(const WeightTensor& tensor, const HfTensor& hf, const Parameter& parameter, ParameterStore& store) {
  const ParameterInfo& info = *parameter.info;
  if (hf.transposed) {
    const auto values = read_transposed(tensor, info, store.tp_rank(), store.tp_size());
    store.write_values(parameter, 0, static_cast<std::int64_t>(values.size()), values.data());
    return;
  }
  const std::int64_t inner = info.shape.elements() / info.shape[0];
  const std::int64_t skipped = covered_rows(hf, info).begin * inner;
  std::vector<float> values;
  for (const Run& run : shard_runs(info, store.tp_rank(), store.tp_size())) {
    if (hf.piece >= 0 && run.piece != hf.piece) continue;
    values.resize(static_cast<std::size_t>(run.count));
    tensor.read_float32(run.global - skipped, run.count, values.data());
    store.write_values(parameter, run.local, run.count, values.data());
  }
}

bool equal_values(const WeightTensor& a, const WeightTensor& b) {
  if (a.shape() != b.shape()) return false;
  constexpr std::int64_t kStretch = 1 << 16;
  std::vector<float> x(kStretch);
  std::vector<float> y(kStretch);
  for (std::int64_t at = 0; at < a.shape().elements(); at += kStretch) {
    const std::int64_t count = std::min(kStretch, a.shape().elements() - at);
    a.read_float32(at, count, x.data());
    b.read_float32(at, count, y.data());
    if (!std::equal(x.begin(), x.begin() + count, y.begin())) return false;
  }
  return true;
}

// Visits the elements of the parameter that this rank counts and owns: f(run, index of its first element in the part).
template <typename F>
void for_counted_runs(const ParameterStore& store, const Parameter& parameter, F&& visit) {
  if (!store.counts(parameter)) return;
  const ParameterInfo& info = *parameter.info;
  const OwnedStretch own = store.owned(parameter);
  for (const Run& run : shard_runs(info, store.tp_rank(), store.tp_size())) {
    if (!counts_piece(info, run.piece, store.tp_rank(), store.tp_size())) continue;
    const std::int64_t begin = std::max(run.local, own.begin);
    const std::int64_t end = std::min(run.local + run.count, own.begin + own.count);
    if (begin >= end) continue;
    visit(Run{begin, run.global + begin - run.local, end - begin, run.piece}, own.at + begin - own.begin);
  }
}

}  // namespace

std::string name_in(const WeightFolder& folder, const std::string& name) {
  if (!folder.contains(name) && name.starts_with(kGpt2Prefix)) {
    std::string bare = name.substr(kGpt2Prefix.size());
    if (folder.contains(bare)) return bare;
  }
  return name;
}

Range covered_rows(const HfTensor& hf, const ParameterInfo& info) {
  if (hf.piece < 0) return {0, info.shape[0]};
  std::int64_t begin = 0;
  for (int i = 0; i < hf.piece; ++i) begin += info.pieces[static_cast<std::size_t>(i)].rows();
  return {begin, info.pieces[static_cast<std::size_t>(hf.piece)].rows()};
}

Shape stored_shape(const HfTensor& hf, const ParameterInfo& info) {
  Shape shape = info.shape;
  shape[0] = covered_rows(hf, info).count;
  return hf.transposed ? Shape{shape[1], shape[0]} : shape;
}

void check_weights(const WeightFolder& folder, const ModelConfig& config, Problems& problems) {
  const Model& model = model_of(config);
  const ParameterTable table = model.parameters(config);
  std::vector<std::string> missing;
  for (const HfTensor& hf : model.hugging_face_tensors(config)) {
    const std::string name = name_in(folder, hf.hf_name);
    if (!folder.contains(name)) {
      missing.push_back(hf.hf_name);
      continue;
    }
    try {
      const WeightTensor tensor = folder.at(name);
      const Shape expected = stored_shape(hf, table.at(hf.parameter));
      problems.add_if(tensor.shape() != expected,
                      fmt::format("--weights {}: {} has shape {}, the model needs {}", folder.path(), name,
                                  to_string(tensor.shape()), to_string(expected)));
    } catch (const Error& error) {  // an element type that cannot be read as numbers
      problems.add(error.what());
    }
  }
  for (std::size_t i = 0; i < missing.size() && i < 5; ++i) {
    const bool head = missing[i] == "lm_head.weight";
    problems.add(fmt::format("--weights {}: {} is missing{}", folder.path(), missing[i],
                             head ? " (tie_word_embeddings is false, so the output head has weights of its own)" : ""));
  }
  if (missing.size() > 5) {
    problems.add(fmt::format("--weights {}: {} more tensors are missing", folder.path(), missing.size() - 5));
  }
  if (config.tied && folder.contains("lm_head.weight") && problems.empty()) {
    for (const HfTensor& hf : model.hugging_face_tensors(config)) {
      if (hf.parameter != "embedding.weight") continue;
      problems.add_if(!equal_values(folder.at("lm_head.weight"), folder.at(name_in(folder, hf.hf_name))),
                      fmt::format("--weights {}: tie_word_embeddings is true but lm_head.weight differs from {}",
                                  folder.path(), hf.hf_name));
    }
  }
}

void load_weights(const WeightFolder& folder, const ModelConfig& config, ParameterStore& store) {
  for (const HfTensor& hf : model_of(config).hugging_face_tensors(config)) {
    const WeightTensor tensor = folder.at(name_in(folder, hf.hf_name));
    for (Parameter* p : store.all()) {
      // The parameter itself, or its tied partner when that lives on another rank.
      const bool wanted = p->info->name == hf.parameter || p->info->tied_with == hf.parameter;
      if (wanted && !store.shares_values(*p)) load_tensor(tensor, hf, *p, store);
    }
  }
}

std::uint64_t local_weights_hash(const ParameterStore& store) {
  std::uint64_t sum = 0;
  for (const Parameter* p : store.all()) {
    if (!p->info->tied_with.empty()) continue;
    const std::uint64_t key = name_key(p->info->name);
    const Tensor master = store.device().to_host(store.bucket_of(*p).master);
    const float* values = master.data<float>();
    for_counted_runs(store, *p, [&](const Run& run, std::int64_t at) {
      for (std::int64_t i = 0; i < run.count; ++i) {
        const std::uint64_t element = mix_key(key, static_cast<std::uint64_t>(run.global + i));
        sum += mix_key(element, std::bit_cast<std::uint32_t>(values[at + i]));
      }
    });
  }
  return sum;
}

std::vector<double> local_hugging_face_squares(const std::vector<HfTensor>& tensors, const ParameterStore& store,
                                               bool of_values) {
  std::vector<double> squares;
  for (const HfTensor& hf : tensors) {
    double sum = 0;
    if (const Parameter* p = store.find(hf.parameter)) {
      const ParameterBucket& bucket = store.bucket_of(*p);
      const Tensor numbers = store.device().to_host(of_values ? bucket.master : bucket.gradient_shard);
      const float* values = numbers.data<float>();
      for_counted_runs(store, *p, [&](const Run& run, std::int64_t at) {
        if (hf.piece >= 0 && run.piece != hf.piece) return;
        for (std::int64_t i = 0; i < run.count; ++i) {
          const double v = values[at + i];
          sum += v * v;
        }
      });
    }
    squares.push_back(sum);
  }
  return squares;
}

}  // namespace cuboid
