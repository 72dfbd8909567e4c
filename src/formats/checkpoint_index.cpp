#include "cuboid/formats/checkpoint_index.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <xxhash.h>

#include "json_text.h"

namespace cuboid {
namespace {

constexpr std::string_view kFormat = "cuboid checkpoint";
constexpr std::int64_t kVersion = 1;
/// {"checksum":"0123456789abcdef",
constexpr std::string_view kChecksumKey = "{\"checksum\":\"";
constexpr std::string_view kChecksumEnd = "\",\n";
constexpr std::size_t kHexDigits = 16;
constexpr std::size_t kFirstLine = kChecksumKey.size() + kHexDigits + kChecksumEnd.size();

std::string hex(std::uint64_t value) {
  return fmt::format("{:016x}", value);
}

/// Reads an index's parts and collects what is wrong with them.
class IndexReader {
 public:
  IndexReader(const std::string& source, Problems& problems) : source_(source), problems_(problems) {}

  CheckpointIndex read(const Json& json) {
    CheckpointIndex index;
    if (!json.is_object() || json.value("format", Json()) != kFormat) {
      fault(fmt::format("is not the index of a checkpoint: \"format\" is not \"{}\"", kFormat));
      return index;
    }
    if (const std::int64_t version = natural(json, "version", ""); version != kVersion) {
      fault(fmt::format("has version {}; this program reads version {}", version, kVersion));
      return index;
    }
    index.step = natural(json, "step", "");
    index.samples = natural(json, "samples", "");
    index.seed = checksum(json, "seed", "");
    index.optimizer_steps = natural(json, "optimizer_steps", "");
    const Json loss = json.value("loss", Json());
    index.loss = loss.is_number() ? loss.get<double>() : std::nan("");
    for (const auto& [name, entry] : object(json, "files").items()) read_file(name, entry, index);
    for (const auto& [name, entry] : object(json, "tensors").items()) read_tensor(name, entry, index);
    return index;
  }

 private:
  void fault(const std::string& reason) { problems_.add(source_ + ": " + reason); }

  const Json& object(const Json& json, const char* key) {
    static const Json kNone = Json::object();
    const auto found = json.find(key);
    if (found != json.end() && found->is_object()) return *found;
    fault(fmt::format("has no object \"{}\"", key));
    return kNone;
  }

  std::int64_t natural(const Json& json, const char* key, const std::string& where) {
    const auto found = json.find(key);
    if (found == json.end()) {
      fault(fmt::format("{}\"{}\" is missing", where, key));
      return 0;
    }
    constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (found->is_number_unsigned() && found->get<std::uint64_t>() <= kMost) return found->get<std::int64_t>();
    fault(fmt::format("{}\"{}\" is {}; it must be a whole number from 0 to 2^63 - 1", where, key, excerpt(*found)));
    return 0;
  }

  /// 16 hexadecimal digits.
  std::uint64_t checksum(const Json& json, const char* key, const std::string& where) {
    const auto found = json.find(key);
    std::uint64_t value = 0;
    if (found != json.end() && found->is_string()) {
      const auto& text = found->get_ref<const std::string&>();
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
      if (error == std::errc() && end == text.data() + text.size() && text.size() == kHexDigits) return value;
    }
    fault(fmt::format("{}\"{}\" must be {} hexadecimal digits", where, key, kHexDigits));
    return 0;
  }

  std::string text(const Json& json, const char* key, const std::string& where) {
    const auto found = json.find(key);
    if (found != json.end() && found->is_string()) return found->get<std::string>();
    fault(fmt::format("{}\"{}\" must be a string", where, key));
    return {};
  }

  void read_file(const std::string& name, const Json& entry, CheckpointIndex& index) {
    const std::string where = fmt::format("file \"{}\": ", name);
    const bool plain = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
                       name.find('\0') == std::string::npos;
    if (!plain) return fault(where + "is not the name of a file in the checkpoint's folder");
    if (!entry.is_object()) return fault(where + "must be an object");
    index.files[name] = {static_cast<std::uint64_t>(natural(entry, "bytes", where)),
                         checksum(entry, "checksum", where)};
  }

  void read_tensor(const std::string& name, const Json& entry, CheckpointIndex& index) {
    const std::string where = fmt::format("tensor {}: ", name);
    if (!entry.is_object()) return fault(where + "must be an object");
    if (const Json dtype = entry.value("dtype", Json()); dtype != "F32") {
      return fault(fmt::format("{}dtype {}; it must be F32", where, excerpt(dtype)));
    }
    const Json shape = entry.value("shape", Json());
    const Json slices = entry.value("slices", Json());
    if (!shape.is_array() || !slices.is_array()) return fault(where + "needs arrays \"shape\" and \"slices\"");
    std::vector<std::int64_t> dims;
    std::int64_t elements = 1;
    for (const Json& dim : shape) {
      const bool sound = dim.is_number_unsigned() && dim.get<std::uint64_t>() <= (std::uint64_t{1} << 62);
      if (!sound || __builtin_mul_overflow(elements, dim.get<std::int64_t>(), &elements)) {
        return fault(fmt::format("{}shape {} has a faulty dim or too many elements", where, excerpt(shape)));
      }
      dims.push_back(dim.get<std::int64_t>());
    }
    CheckpointTensor tensor{Shape(dims), {}};
    for (const Json& slice : slices) {
      if (auto read = read_slice(slice, where, elements, index)) tensor.slices.push_back(std::move(*read));
    }
    index.tensors[name] = std::move(tensor);
  }

  std::optional<StoredSlice> read_slice(const Json& json, const std::string& where, std::int64_t elements,
                                        const CheckpointIndex& index) {
    if (!json.is_object()) {
      fault(where + "a slice must be an object");
      return std::nullopt;
    }
    StoredSlice made;
    made.file = text(json, "file", where);
    made.entry = text(json, "entry", where);
    made.checksum = checksum(json, "checksum", where);
    Slice& s = made.slice;
    s.start = natural(json, "start", where);
    s.length = natural(json, "length", where);
    if (json.contains("repeat")) {
      s.repeat = natural(json, "repeat", where);
      s.stride = natural(json, "stride", where);
    }
    // (repeat - 1) · stride + length + start <= elements, without overflow.
    std::int64_t end = 0;
    const bool sound = s.length >= 1 && s.repeat >= 1 && (s.repeat == 1 || s.stride >= s.length) &&
                       !__builtin_mul_overflow(s.repeat - 1, s.stride, &end) &&
                       !__builtin_add_overflow(end, s.length, &end) && !__builtin_add_overflow(end, s.start, &end) &&
                       end <= elements;
    if (!sound) {
      fault(fmt::format("{}slice {} (start {}, length {}, stride {}, repeat {}) leaves its {} elements", where,
                        made.entry, s.start, s.length, s.stride, s.repeat, elements));
      return std::nullopt;
    }
    if (!index.files.contains(made.file)) {
      fault(fmt::format("{}slice {} lies in file \"{}\", which is not listed", where, made.entry, made.file));
      return std::nullopt;
    }
    return made;
  }

  const std::string& source_;
  Problems& problems_;
};

CheckpointIndex read_index(std::string_view text, const std::string& source, Problems& problems) {
  const bool framed = text.size() >= kFirstLine && text.starts_with(kChecksumKey) &&
                      text.substr(kFirstLine - kChecksumEnd.size(), kChecksumEnd.size()) == kChecksumEnd;
  if (!framed) {
    throw Error(ErrorKind::request, source + ": is not the index of a checkpoint: its first line holds no checksum");
  }
  const std::string_view stored = text.substr(kChecksumKey.size(), kHexDigits);
  const std::string_view rest = text.substr(kFirstLine);
  if (const std::string found = hex(checksum_of(rest.data(), rest.size())); found != stored) {
    throw Error(ErrorKind::request,
                fmt::format("{}: is damaged: its checksum is {}, the first line says {}", source, found, stored));
  }
  const Json json = parse_json(text, source, problems);
  problems.throw_if_any();
  return IndexReader(source, problems).read(json);
}

Json json_of(const CheckpointTensor& tensor) {
  Json slices = Json::array();
  for (const StoredSlice& stored : tensor.slices) {
    const Slice& s = stored.slice;
    Json entry = {{"file", stored.file},
                  {"entry", stored.entry},
                  {"checksum", hex(stored.checksum)},
                  {"start", s.start},
                  {"length", s.length}};
    if (s.repeat > 1) {
      entry["stride"] = s.stride;
      entry["repeat"] = s.repeat;
    }
    slices.push_back(std::move(entry));
  }
  return {{"dtype", "F32"}, {"shape", tensor.shape.dims()}, {"slices", std::move(slices)}};
}

/// The tensor's elements as the runs of its slices, sorted; "" if they tile it.
std::string coverage_fault(const CheckpointTensor& tensor) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;  // begin, end
  std::int64_t held = 0;
  const std::int64_t elements = tensor.shape.elements();
  for (const StoredSlice& stored : tensor.slices) {
    // Slices lie in the tensor, so none has more elements than it; more in sum overlap. Checked before runs are listed.
    if (stored.slice.elements() > elements - held) {
      return fmt::format("its slices hold more than its {} elements", elements);
    }
    held += stored.slice.elements();
    for (std::int64_t i = 0; i < stored.slice.repeat; ++i) {
      const std::int64_t begin = stored.slice.start + i * stored.slice.stride;
      // Neighbours in one slice order merge, so that the list stays short.
      if (!runs.empty() && runs.back().second == begin) {
        runs.back().second += stored.slice.length;
      } else {
        runs.emplace_back(begin, begin + stored.slice.length);
      }
    }
  }
  std::sort(runs.begin(), runs.end());
  std::int64_t at = 0;
  for (const auto& [begin, end] : runs) {
    if (begin != at)
      return fmt::format("element {} is {}", std::min(begin, at), begin > at ? "missing" : "stored twice");
    at = end;
  }
  return at == elements ? "" : fmt::format("element {} is missing", at);
}

}  // namespace

std::uint64_t checksum_of(const void* data, std::size_t size) {
  return XXH3_64bits(data, size);
}

std::string write_checkpoint_index(const CheckpointIndex& index) {
  Json files = Json::object();
  for (const auto& [name, file] : index.files) files[name] = {{"bytes", file.bytes}, {"checksum", hex(file.checksum)}};
  std::string rest = fmt::format(
      "\"format\":\"{}\",\"version\":{},\n\"step\":{},\"samples\":{},\"seed\":\"{}\",\"optimizer_steps\":{},"
      "\"loss\":{},\n\"files\":{},\n\"tensors\":{{",
      kFormat, kVersion, index.step, index.samples, hex(index.seed), index.optimizer_steps, Json(index.loss).dump(),
      files.dump());
  const char* separator = "\n";
  for (const auto& [name, tensor] : index.tensors) {
    rest += fmt::format("{}{}:{}", separator, Json(name).dump(), json_of(tensor).dump());
    separator = ",\n";
  }
  rest += "\n}}\n";
  return fmt::format("{}{}{}{}", kChecksumKey, hex(checksum_of(rest.data(), rest.size())), kChecksumEnd, rest);
}

CheckpointIndex read_checkpoint_index(std::string_view text, const std::string& source) {
  Problems problems;
  CheckpointIndex index = read_index(text, source, problems);
  if (problems.empty()) check_coverage(index, source, problems);
  problems.throw_if_any();
  return index;
}

CheckpointIndex read_partial_index(std::string_view text, const std::string& source) {
  Problems problems;
  CheckpointIndex index = read_index(text, source, problems);
  problems.throw_if_any();
  return index;
}

void merge_index(CheckpointIndex& whole, const CheckpointIndex& part) {
  for (const auto& [name, file] : part.files) whole.files[name] = file;
  for (const auto& [name, tensor] : part.tensors) {
    CheckpointTensor& into = whole.tensors[name];
    into.shape = tensor.shape;
    into.slices.insert(into.slices.end(), tensor.slices.begin(), tensor.slices.end());
  }
}

void check_coverage(const CheckpointIndex& index, const std::string& source, Problems& problems) {
  for (const auto& [name, tensor] : index.tensors) {
    if (const std::string fault = coverage_fault(tensor); !fault.empty()) {
      problems.add(fmt::format("{}: tensor {}: {}", source, name, fault));
    }
  }
}

}  // namespace cuboid
