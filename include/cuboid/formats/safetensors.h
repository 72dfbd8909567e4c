// Weights as Hugging Face stores them: one .safetensors file, or a folder of shards with an index. The whole header is
// checked before anything in it is used. Not here: which tensor belongs to which parameter (models/ maps the names).
// Format: https://huggingface.co/docs/safetensors
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/core/shape.h"
#include "cuboid/formats/mapped_file.h"

namespace cuboid {

/// Element types of the format, spelled as in the format. `unknown`: a type this program does not know; such a tensor
/// may lie in a file but not be used.
enum class StoredType : std::uint8_t {
  F64,
  F32,
  F16,
  BF16,
  I64,
  I32,
  I16,
  I8,
  U64,
  U32,
  U16,
  U8,
  BOOL,
  F8_E4M3,
  F8_E5M2,
  unknown
};

/// "BF16".
const char* name_of(StoredType type);
/// Bytes of one element; 0 for unknown.
std::size_t size_of(StoredType type);

struct StoredTensor {
  std::string name;
  std::string dtype;  ///< as written in the file
  StoredType type = StoredType::unknown;
  Shape shape;
  std::uint64_t begin = 0;  ///< first byte, counted from the end of the header
  std::uint64_t end = 0;    ///< one past the last byte
};

class SafetensorsFile {
 public:
  /// @throws Error{request} naming the file and every fault: header longer than the file, not an object, a duplicate
  /// key,
  ///         numbers that are negative, fractional or too large, a shape whose element count overflows, begin after
  ///         end, a length that does not fit type and shape, overlaps, holes, bytes after the last tensor, metadata
  ///         that is not text. Empty tensors (a 0 in the shape) and scalars (shape []) are legal.
  static SafetensorsFile open(const std::string& path);

  const std::string& path() const { return file_->path(); }
  /// In the order of the data.
  const std::vector<StoredTensor>& tensors() const { return tensors_; }
  /// Null if there is none of that name.
  const StoredTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// The tensor's bytes, little-endian, row-major, of any alignment. @pre the tensor is one of this file
  std::span<const std::byte> bytes(const StoredTensor& tensor) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  std::uint64_t data_begin_ = 0;
  std::vector<StoredTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

/// A tensor of floating-point numbers in a file. Copying copies the reference. Safe to read from many threads.
class WeightTensor {
 public:
  WeightTensor(std::shared_ptr<const SafetensorsFile> file, const StoredTensor* tensor)
      : file_(std::move(file)), tensor_(tensor) {}

  const std::string& name() const { return tensor_->name; }
  const Shape& shape() const { return tensor_->shape; }
  StoredType type() const { return tensor_->type; }
  /// The file it lies in, for messages.
  const std::string& path() const { return file_->path(); }
  /// Elements [first_element, first_element + count) in row-major order as float32: exact from F32, F16 and BF16,
  /// rounded to nearest from F64. @pre the range lies in the tensor
  void read_float32(std::int64_t first_element, std::int64_t count, float* out) const;

 private:
  std::shared_ptr<const SafetensorsFile> file_;
  const StoredTensor* tensor_;
};

/// All weights of a model.
class WeightFolder {
 public:
  /// @param path a folder with model.safetensors.index.json or model.safetensors (where both exist the index decides,
  ///        with a warning), a .safetensors file, or an index .json file beside its shards.
  /// A tensor is read from the shard that the index names; tensors that the index does not list are ignored.
  /// @throws Error{request} with every fault: no such path, faulty shard files, an index that names a missing shard, a
  ///         tensor that is not in its shard, or a path that leaves the folder.
  static WeightFolder open(const std::string& path);

  /// What was opened, for messages.
  const std::string& path() const { return path_; }
  /// In ascending order.
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return where_.find(name) != where_.end(); }
  /// @throws Error{request} if there is no such tensor (naming the nearest), or if its element type is not F64, F32,
  /// F16
  ///         or BF16
  WeightTensor at(std::string_view name) const;

 private:
  std::string path_;
  std::map<std::string, std::shared_ptr<const SafetensorsFile>, std::less<>> where_;
};

/// A tensor to be written.
struct TensorToWrite {
  std::string name;
  StoredType type = StoredType::F32;
  Shape shape;
  std::span<const std::byte> bytes;  ///< little-endian, row-major
};

/// Writes a file, data in the given order. It appears whole or not at all: written under a temporary name in the same
/// folder, synced, renamed. @throws Error{failed} naming the path and the system's reason. @pre names differ, byte
/// counts fit type and shape
void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace cuboid
