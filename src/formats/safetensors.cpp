#include "cuboid/formats/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>

#include <fmt/format.h>

#include "json_text.h"

static_assert(std::endian::native == std::endian::little, "files are little-endian and used in place");

namespace cuboid {
namespace {

struct TypeRow {
  StoredType type;
  const char* name;
  std::size_t size;
};
constexpr std::array kTypes = {
    TypeRow{StoredType::F64, "F64", 8},         TypeRow{StoredType::F32, "F32", 4},
    TypeRow{StoredType::F16, "F16", 2},         TypeRow{StoredType::BF16, "BF16", 2},
    TypeRow{StoredType::I64, "I64", 8},         TypeRow{StoredType::I32, "I32", 4},
    TypeRow{StoredType::I16, "I16", 2},         TypeRow{StoredType::I8, "I8", 1},
    TypeRow{StoredType::U64, "U64", 8},         TypeRow{StoredType::U32, "U32", 4},
    TypeRow{StoredType::U16, "U16", 2},         TypeRow{StoredType::U8, "U8", 1},
    TypeRow{StoredType::BOOL, "BOOL", 1},       TypeRow{StoredType::F8_E4M3, "F8_E4M3", 1},
    TypeRow{StoredType::F8_E5M2, "F8_E5M2", 1}, TypeRow{StoredType::unknown, "unknown", 0},
};

/// The reference implementation's limit; a longer header is no model's.
constexpr std::uint64_t kLongestHeader = 100'000'000;

StoredType type_named(const std::string& name) {
  for (const TypeRow& row : kTypes) {
    if (name == row.name) return row.type;
  }
  return StoredType::unknown;
}

/// Element count of a shape, multiplied in order; nothing if a product passes 2^63 - 1.
std::optional<std::int64_t> checked_elements(const std::vector<std::int64_t>& dims) {
  std::int64_t n = 1;
  for (const std::int64_t dim : dims) {
    if (__builtin_mul_overflow(n, dim, &n)) return std::nullopt;
  }
  return n;
}

/// One entry of the header, checked by itself. Faults go to problems; nothing is returned if it cannot be used at all.
class EntryReader {
 public:
  EntryReader(const std::string& where, std::uint64_t data_size, Problems& problems)
      : where_(where), data_size_(data_size), problems_(problems) {}

  std::optional<StoredTensor> read(const std::string& name, const Json& entry) {
    where_ += ": tensor " + name;
    if (!entry.is_object()) return fault("must be an object, is " + kind_of(entry));
    bool complete = true;
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
      if (!entry.contains(key)) {
        fault(std::string("has no ") + key);
        complete = false;
      }
    }
    if (!complete) return std::nullopt;
    StoredTensor tensor;
    tensor.name = name;
    const bool typed = read_type(entry["dtype"], tensor);
    const std::optional<std::int64_t> elements = read_shape(entry["shape"], tensor);
    if (!read_offsets(entry["data_offsets"], tensor) || !typed || !elements) return std::nullopt;
    return check_length(*elements, tensor) ? std::optional(std::move(tensor)) : std::nullopt;
  }

 private:
  std::nullopt_t fault(const std::string& reason) {
    problems_.add(where_ + " " + reason);
    return std::nullopt;
  }

  bool read_type(const Json& value, StoredTensor& tensor) {
    if (!value.is_string()) {
      fault("dtype must be a string, is " + excerpt(value));
      return false;
    }
    tensor.dtype = value.get<std::string>();
    tensor.type = type_named(tensor.dtype);
    return true;
  }

  /// A number of the format: an integer >= 0 that fits 63 bits.
  std::optional<std::int64_t> natural(const Json& value, const char* what) {
    if (value.is_number_unsigned() &&
        value.get<std::uint64_t>() <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return value.get<std::int64_t>();
    }
    const char* reason = value.is_number_integer() && !value.is_number_unsigned() ? "is negative"
                         : value.is_number_float()                                ? "is not a whole number below 2^63"
                         : value.is_number()                                      ? "is too large"
                                                                                  : "is not a number";
    fault(fmt::format("{} {} {}", what, excerpt(value), reason));
    return std::nullopt;
  }

  std::optional<std::int64_t> read_shape(const Json& value, StoredTensor& tensor) {
    if (!value.is_array()) return fault("shape must be an array, is " + excerpt(value));
    std::vector<std::int64_t> dims;
    for (const Json& item : value) {
      const auto dim = natural(item, "shape entry");
      if (!dim) return std::nullopt;
      dims.push_back(*dim);
    }
    const auto elements = checked_elements(dims);
    if (!elements) return fault("shape " + excerpt(value) + " has more than 2^63 - 1 elements");
    tensor.shape = Shape(std::move(dims));
    return elements;
  }

  bool read_offsets(const Json& value, StoredTensor& tensor) {
    if (!value.is_array() || value.size() != 2) {
      fault("data_offsets must be two numbers, is " + excerpt(value));
      return false;
    }
    const auto begin = natural(value[0], "data offset");
    const auto end = natural(value[1], "data offset");
    if (!begin || !end) return false;
    tensor.begin = static_cast<std::uint64_t>(*begin);
    tensor.end = static_cast<std::uint64_t>(*end);
    if (tensor.begin > tensor.end) {
      fault(fmt::format("data_offsets begin {} after their end {}", tensor.begin, tensor.end));
      return false;
    }
    if (tensor.end > data_size_) {
      fault(fmt::format("ends at byte {} of the data, the file holds {}", tensor.end, data_size_));
      return false;
    }
    return true;
  }

  bool check_length(std::int64_t elements, const StoredTensor& tensor) {
    if (tensor.type == StoredType::unknown) return true;
    std::int64_t bytes = 0;
    const auto held = tensor.end - tensor.begin;
    const bool overflow = __builtin_mul_overflow(elements, static_cast<std::int64_t>(size_of(tensor.type)), &bytes);
    if (!overflow && static_cast<std::uint64_t>(bytes) == held) return true;
    fault(fmt::format("of shape {} and type {} needs {} bytes, its data_offsets give {}", to_string(tensor.shape),
                      tensor.dtype, overflow ? "over 2^63" : std::to_string(bytes), held));
    return false;
  }

  std::string where_;
  std::uint64_t data_size_;
  Problems& problems_;
};

/// The ranges must tile the data: no overlap, hole or rest. @param tensors in the order of the data
void check_tiling(const std::vector<StoredTensor>& tensors, std::uint64_t data_size, const std::string& path,
                  Problems& problems) {
  std::uint64_t at = 0;
  const StoredTensor* last = nullptr;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin > at) {
      problems.add(fmt::format("{}: a hole: bytes {} to {} of the data, before tensor {}, belong to no tensor", path,
                               at, tensor.begin, tensor.name));
    } else if (tensor.begin < at) {
      problems.add(fmt::format("{}: tensors {} and {} overlap at byte {} of the data", path, last->name, tensor.name,
                               tensor.begin));
    }
    if (last == nullptr || tensor.end >= at) {
      at = tensor.end;
      last = &tensor;
    }
  }
  if (at < data_size) {
    problems.add(
        fmt::format("{}: the last {} of {} bytes of data belong to no tensor", path, data_size - at, data_size));
  }
}

std::string_view header_text(const MappedFile& file, Problems& problems) {
  const auto bytes = file.bytes();
  std::uint64_t length = 0;
  if (bytes.size() < sizeof(length)) {
    problems.add(fmt::format("{}: {} bytes are too few for a safetensors file (8 bytes of header length come first)",
                             file.path(), bytes.size()));
    return {};
  }
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > bytes.size() - sizeof(length)) {
    problems.add(fmt::format("{}: the header is said to be {} bytes long, past the end of the file: {} bytes follow",
                             file.path(), length, bytes.size() - sizeof(length)));
    return {};
  }
  if (length > kLongestHeader) {
    problems.add(fmt::format("{}: a header of {} bytes; at most {} are allowed", file.path(), length, kLongestHeader));
    return {};
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length);
  if (text.empty() || text.front() != '{') {
    problems.add(file.path() + ": the header is not a JSON object (it must begin with '{')");
    return {};
  }
  return text;
}

void read_metadata(const Json& value, const std::string& path, std::map<std::string, std::string>& metadata,
                   Problems& problems) {
  if (!value.is_object()) {
    problems.add(path + ": __metadata__ must be an object of strings, is " + kind_of(value));
    return;
  }
  for (const auto& [key, item] : value.items()) {
    if (item.is_string()) {
      metadata[key] = item.get<std::string>();
    } else {
      problems.add(fmt::format("{}: __metadata__ entry {} must be a string, is {}", path, key, excerpt(item)));
    }
  }
}

}  // namespace

const char* name_of(StoredType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.name;
  }
  return "unknown";
}

std::size_t size_of(StoredType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row.size;
  }
  return 0;
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result;
  result.file_ = MappedFile::open(path);
  Problems problems;
  const std::string_view text = header_text(*result.file_, problems);
  problems.throw_if_any();
  result.data_begin_ = sizeof(std::uint64_t) + text.size();
  const std::uint64_t data_size = result.file_->bytes().size() - result.data_begin_;

  const Json header = parse_json(text, path, problems);
  if (!header.is_object()) problems.throw_if_any();
  bool entries_sound = true;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      read_metadata(entry, path, result.metadata_, problems);
    } else if (auto tensor = EntryReader(path, data_size, problems).read(name, entry)) {
      result.tensors_.push_back(std::move(*tensor));
    } else {
      entries_sound = false;
    }
  }
  std::sort(result.tensors_.begin(), result.tensors_.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  // A faulty entry leaves a hole that is not a fault of its own; so does a duplicate.
  if (entries_sound && problems.empty()) check_tiling(result.tensors_, data_size, path, problems);
  problems.throw_if_any();
  for (std::size_t i = 0; i < result.tensors_.size(); ++i) result.by_name_[result.tensors_[i].name] = i;
  return result;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  const auto data = file_->bytes().subspan(data_begin_);
  CUBOID_CHECK(tensor.begin <= tensor.end && tensor.end <= data.size(),
               "tensor " + tensor.name + " is of another file");
  return data.subspan(tensor.begin, tensor.end - tensor.begin);
}

}  // namespace cuboid
