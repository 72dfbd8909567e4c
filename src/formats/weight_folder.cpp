#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "cuboid/core/log.h"
#include "cuboid/core/text.h"
#include "cuboid/formats/safetensors.h"

#include "json_text.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;

/// IEEE binary16 to binary32: exact.
float float_of_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fU;
  const std::uint32_t fraction = half & 0x3ffU;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  const std::uint32_t wide = exponent == 31 ? 0xffU : exponent + 112;
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

template <typename Stored, typename Convert>
void convert(std::span<const std::byte> bytes, std::int64_t first, std::int64_t count, float* out, Convert to_float) {
  const std::byte* from = bytes.data() + static_cast<std::size_t>(first) * sizeof(Stored);
  for (std::int64_t i = 0; i < count; ++i) {
    Stored value;
    std::memcpy(&value, from + static_cast<std::size_t>(i) * sizeof(Stored), sizeof(Stored));
    out[i] = to_float(value);
  }
}

/// The shards of an index, checked: tensor name → shard's path.
class IndexReader {
 public:
  explicit IndexReader(const std::string& path) : path_(path) {}

  std::map<std::string, std::shared_ptr<const SafetensorsFile>, std::less<>> read() {
    const auto file = MappedFile::open(path_);
    const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
    const Json index = parse_json(text, path_, problems_);
    problems_.throw_if_any();
    if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
      throw Error(ErrorKind::request, path_ + ": is not an index of safetensors shards: it has no object weight_map");
    }
    std::map<std::string, std::shared_ptr<const SafetensorsFile>, std::less<>> where;
    for (const auto& [name, shard] : index["weight_map"].items()) {
      if (!shard.is_string()) {
        problems_.add(
            fmt::format("{}: the shard of tensor {} must be a file name, is {}", path_, name, excerpt(shard)));
        continue;
      }
      const auto shard_file = open_shard(shard.get_ref<const std::string&>());
      if (shard_file == nullptr) continue;
      if (shard_file->find(name) == nullptr) {
        problems_.add(fmt::format("{}: tensor {} is not in its shard {}", path_, name, shard_file->path()));
      }
      where.emplace(name, shard_file);
    }
    problems_.throw_if_any();
    return where;
  }

 private:
  /// Each shard once; null (and one problem) if it cannot be used.
  std::shared_ptr<const SafetensorsFile> open_shard(const std::string& shard) {
    const auto [entry, added] = shards_.try_emplace(shard);
    if (!added) return entry->second;
    const fs::path relative(shard);
    bool leaves = shard.empty() || relative.is_absolute() || shard.find('\0') != std::string::npos;
    for (const auto& part : relative) leaves = leaves || part == "..";
    if (leaves) {
      problems_.add(fmt::format("{}: shard \"{}\" is not a path within the index's folder", path_, shard));
      return nullptr;
    }
    const fs::path full = fs::path(path_).parent_path() / relative;
    std::error_code ignored;
    if (!fs::exists(full, ignored)) {
      problems_.add(fmt::format("{}: shard {} is missing from the folder", path_, shard));
      return nullptr;
    }
    try {
      entry->second = std::make_shared<SafetensorsFile>(SafetensorsFile::open(full.string()));
    } catch (const Error& error) {
      problems_.add(error.what());
    }
    return entry->second;
  }

  std::string path_;
  Problems problems_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> shards_;
};

}  // namespace

void WeightTensor::read_float32(std::int64_t first_element, std::int64_t count, float* out) const {
  CUBOID_CHECK(first_element >= 0 && count >= 0 && first_element <= tensor_->shape.elements() - count,
               "elements outside tensor " + name());
  const auto bytes = file_->bytes(*tensor_);
  switch (tensor_->type) {
    case StoredType::F32:
      if (count > 0) std::memcpy(out, bytes.data() + first_element * 4, static_cast<std::size_t>(count) * 4);
      return;
    case StoredType::F64:
      return convert<double>(bytes, first_element, count, out, [](double x) { return static_cast<float>(x); });
    case StoredType::F16:
      return convert<std::uint16_t>(bytes, first_element, count, out, float_of_half);
    case StoredType::BF16:
      return convert<std::uint16_t>(bytes, first_element, count, out, [](std::uint16_t x) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
      });
    default:
      contract_violation("floating-point type", __FILE__, __LINE__, name());
  }
}

WeightFolder WeightFolder::open(const std::string& path) {
  WeightFolder folder;
  folder.path_ = path;
  std::error_code ignored;
  std::string file = path;
  if (fs::is_directory(path, ignored)) {
    const fs::path single = fs::path(path) / "model.safetensors";
    const fs::path index = fs::path(path) / "model.safetensors.index.json";
    const bool has_single = fs::exists(single, ignored);
    const bool has_index = fs::exists(index, ignored);
    if (!has_single && !has_index) {
      throw Error(ErrorKind::request, path +
                                          ": the folder holds neither model.safetensors nor "
                                          "model.safetensors.index.json");
    }
    if (has_single && has_index) {
      log::warning(path + ": holds model.safetensors and an index of shards; the index decides");
    }
    file = (has_index ? index : single).string();
  }
  if (file.ends_with(".json")) {
    folder.where_ = IndexReader(file).read();
    return folder;
  }
  const auto single = std::make_shared<SafetensorsFile>(SafetensorsFile::open(file));
  for (const StoredTensor& tensor : single->tensors()) folder.where_.emplace(tensor.name, single);
  return folder;
}

std::vector<std::string> WeightFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : where_) names.push_back(name);
  return names;
}

WeightTensor WeightFolder::at(std::string_view name) const {
  const auto found = where_.find(name);
  if (found == where_.end()) {
    const std::string near = nearest(name, names());
    throw Error(ErrorKind::request, fmt::format("{}: there is no tensor {}{}", path_, name,
                                                near.empty() ? "; the file is empty" : "; the nearest is " + near));
  }
  const StoredTensor* tensor = found->second->find(name);
  switch (tensor->type) {
    case StoredType::F64:
    case StoredType::F32:
    case StoredType::F16:
    case StoredType::BF16:
      return {found->second, tensor};
    default:
      throw Error(ErrorKind::request, fmt::format("{}: tensor {} has dtype {}; weights must be F64, F32, F16 or BF16",
                                                  found->second->path(), name, tensor->dtype));
  }
}

}  // namespace cuboid
