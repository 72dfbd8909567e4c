#include "cuboid/formats/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "cuboid/formats/durable.h"
#include "cuboid/formats/hf_config.h"
#include "cuboid/formats/run_file.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kPartial = ".tmp";
constexpr std::string_view kTensorFile = ".safetensors";

std::string join_path(const std::string& folder, std::string_view name) {
  return (fs::path(folder) / name).string();
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// The shape under which a slice lies in its file.
Shape stored_shape(const Slice& slice, const Shape& global) {
  if (slice.elements() == global.elements()) return global;
  return slice.repeat == 1 ? Shape{slice.length} : Shape{slice.repeat, slice.length};
}

/// Checksum of a safetensors file's length and header: what lies before its data.
std::uint64_t header_checksum(std::span<const std::byte> bytes) {
  std::uint64_t length = 0;
  if (bytes.size() < sizeof(length)) return checksum_of(bytes.data(), bytes.size());
  std::memcpy(&length, bytes.data(), sizeof(length));
  length = std::min<std::uint64_t>(length, bytes.size() - sizeof(length));  // a damaged length
  return checksum_of(bytes.data(), sizeof(length) + length);
}

CheckpointFile record_of(const std::string& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  const bool tensors = path.ends_with(kTensorFile);
  return {bytes.size(), tensors ? header_checksum(bytes) : checksum_of(bytes.data(), bytes.size())};
}

}  // namespace

std::string checkpoint_name(std::int64_t step) {
  return fmt::format("{}{:08}", kPrefix, step);
}

std::vector<std::string> list_checkpoints(const std::string& folder) {
  std::vector<std::pair<std::int64_t, std::string>> found;
  std::error_code fault;
  for (auto entry = fs::directory_iterator(folder, fault); !fault && entry != fs::directory_iterator();
       entry.increment(fault)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kPrefix) || name.find_first_not_of("0123456789", kPrefix.size()) != std::string::npos)
      continue;
    // The name alone says that it is complete: it is given by the last rename.
    if (name.size() > kPrefix.size() && name.size() < kPrefix.size() + 18 && !entry->is_symlink()) {
      found.emplace_back(std::stoll(name.substr(kPrefix.size())), entry->path().string());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

void remove_partial_checkpoints(const std::string& folder) {
  std::error_code fault;
  std::vector<fs::path> partial;
  for (auto entry = fs::directory_iterator(folder, fault); !fault && entry != fs::directory_iterator();
       entry.increment(fault)) {
    const std::string name = entry->path().filename().string();
    const bool link = name.starts_with(std::string(Checkpoint::kLatestName) + std::string(kPartial));
    if (link || (name.starts_with(kPrefix) && name.ends_with(kPartial))) partial.push_back(entry->path());
  }
  for (const fs::path& path : partial) fs::remove_all(path, fault);
}

std::optional<std::string> Checkpoint::find(const std::string& path) {
  if (exists(join_path(path, kIndexName)) && !exists(join_path(path, kLatestName))) return path;
  for (const std::string& folder : {path, join_path(path, kFolderName)}) {
    if (const std::string latest = join_path(folder, kLatestName); exists(join_path(latest, kIndexName))) {
      std::error_code fault;
      const fs::path target = fs::read_symlink(latest, fault);
      return fault ? latest : join_path(folder, target.string());
    }
    if (const auto all = list_checkpoints(folder); !all.empty()) return all.back();
  }
  return std::nullopt;
}

Checkpoint Checkpoint::open(const std::string& path) {
  const auto found = find(path);
  if (!found) {
    throw Error(ErrorKind::request, path + ": holds no checkpoint (no index.json, latest or step_… is in it)");
  }
  Checkpoint made;
  made.path_ = *found;
  const std::string index_path = join_path(*found, kIndexName);
  made.index_ = read_partial_index(text_of(*MappedFile::open(index_path)), index_path);
  Problems problems;
  const auto collect = [&](const auto& look) {
    try {
      look();
    } catch (const Error& error) {
      problems.add(error.what());
    }
  };
  for (const auto& [name, record] : made.index_.files) {
    if (!name.ends_with(kTensorFile)) continue;
    collect([&, &file_name = name] {
      made.files_[file_name] = std::make_shared<SafetensorsFile>(SafetensorsFile::open(join_path(*found, file_name)));
    });
  }
  problems.throw_if_any();
  for (const auto& [name, tensor] : made.index_.tensors) {
    for (const StoredSlice& stored : tensor.slices) {
      const auto file = made.files_.find(stored.file);
      const StoredTensor* entry = file == made.files_.end() ? nullptr : file->second->find(stored.entry);
      const bool fits =
          entry && entry->type == StoredType::F32 && entry->shape == stored_shape(stored.slice, tensor.shape);
      problems.add_if(!fits, fmt::format("{}: tensor {}: {} does not hold {} as the index says", *found, name,
                                         stored.file, stored.entry));
    }
  }
  // Only of what the files hold: checking lists every run of a slice, of which an index may promise any number.
  if (problems.empty()) check_coverage(made.index_, index_path, problems);
  collect([&] { made.model_ = load_model(join_path(*found, kModelName)); });
  if (made.index_.files.contains(kRunName)) {
    collect([&] { made.run_ = read_run_file(join_path(*found, kRunName)); });
  }
  problems.throw_if_any();
  return made;
}

const CheckpointTensor* Checkpoint::find_tensor(std::string_view name) const {
  const auto found = index_.tensors.find(name);
  return found == index_.tensors.end() ? nullptr : &found->second;
}

const std::byte* Checkpoint::data_of(const StoredSlice& slice) const {
  const SafetensorsFile& file = *files_.find(slice.file)->second;
  return file.bytes(*file.find(slice.entry)).data();
}

void Checkpoint::read(const CheckpointTensor& tensor, std::span<const WantedRun> wanted, float* out) const {
  if (wanted.empty()) return;
  const std::int64_t first = wanted.front().global;
  const std::int64_t last = wanted.back().global + wanted.back().count;
  for (const StoredSlice& stored : tensor.slices) {
    const Slice& s = stored.slice;
    if (s.end() <= first || s.start >= last) continue;
    const std::byte* data = data_of(stored);
    std::int64_t taken = 0;
    for (std::int64_t i = 0; i < s.repeat; ++i) {
      const std::int64_t begin = s.start + i * s.stride;
      const std::int64_t end = begin + s.length;
      auto run = std::upper_bound(wanted.begin(), wanted.end(), begin,
                                  [](std::int64_t at, const WantedRun& w) { return at < w.global + w.count; });
      for (; run != wanted.end() && run->global < end; ++run) {
        const std::int64_t from = std::max(begin, run->global);
        const std::int64_t count = std::min(end, run->global + run->count) - from;
        std::memcpy(out + run->to + (from - run->global), data + (i * s.length + from - begin) * 4,
                    static_cast<std::size_t>(count) * 4);
        taken += count;
      }
    }
    // What is read whole is checked on the way; `verify` checks everything.
    if (taken == s.elements() && checksum_of(data, static_cast<std::size_t>(taken) * 4) != stored.checksum) {
      throw Error(ErrorKind::request,
                  join_path(path_, stored.file) + ": is damaged: " + stored.entry + " does not have its checksum");
    }
  }
}

std::vector<float> Checkpoint::read_whole(const CheckpointTensor& tensor) const {
  std::vector<float> values(static_cast<std::size_t>(tensor.shape.elements()));
  const WantedRun all{0, tensor.shape.elements(), 0};
  read(tensor, {&all, 1}, values.data());
  return values;
}

std::vector<std::string> Checkpoint::verify() const {
  std::vector<std::string> faults;
  for (const auto& [name, record] : index_.files) {
    const std::string path = join_path(path_, name);
    try {
      const CheckpointFile found = record_of(path);
      if (found.bytes != record.bytes) {
        faults.push_back(fmt::format("{}: has {} bytes, the index says {}", path, found.bytes, record.bytes));
      } else if (found.checksum != record.checksum) {
        faults.push_back(path + (name.ends_with(kTensorFile) ? ": its header is damaged" : ": is damaged"));
      }
    } catch (const Error& error) {
      faults.push_back(error.what());
    }
  }
  for (const auto& [name, tensor] : index_.tensors) {
    for (const StoredSlice& stored : tensor.slices) {
      if (checksum_of(data_of(stored), static_cast<std::size_t>(stored.slice.elements()) * 4) == stored.checksum)
        continue;
      faults.push_back(
          fmt::format("{}: tensor {} is damaged (entry {})", join_path(path_, stored.file), name, stored.entry));
    }
  }
  return faults;
}

CheckpointIndex write_checkpoint_file(const std::string& folder, const std::string& name,
                                      std::span<const SliceToWrite> slices) {
  CheckpointIndex part;
  std::vector<TensorToWrite> tensors;
  for (const SliceToWrite& given : slices) {
    const bool whole = given.slice.elements() == given.shape.elements();
    const std::string entry = whole ? given.tensor : fmt::format("{}@{}", given.tensor, given.slice.start);
    const std::span<const float> values(given.data, static_cast<std::size_t>(given.slice.elements()));
    tensors.push_back({entry, StoredType::F32, stored_shape(given.slice, given.shape), std::as_bytes(values)});
    CheckpointTensor& tensor = part.tensors[given.tensor];
    tensor.shape = given.shape;
    tensor.slices.push_back({given.slice, name, entry, checksum_of(values.data(), values.size_bytes())});
  }
  const std::string path = join_path(folder, name);
  write_safetensors(path, tensors, {{"format", "pt"}});
  part.files[name] = record_of(path);
  return part;
}

void write_checkpoint_end(const std::string& folder, CheckpointIndex index, const ModelConfig& model,
                          const RunConfig* run) {
  const auto add = [&](std::string_view name, const std::string& text) {
    write_durably(join_path(folder, name), text);
    index.files[std::string(name)] = {text.size(), checksum_of(text.data(), text.size())};
  };
  add(Checkpoint::kModelName, write_hf_config(model));
  if (run) add(Checkpoint::kRunName, write_run_file(*run));
  write_durably(join_path(folder, Checkpoint::kIndexName), write_checkpoint_index(index));
}

}  // namespace cuboid
