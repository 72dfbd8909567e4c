// What a checkpoint holds and where: every element of every global tensor exactly once, as slices in safetensors files.
// The index knows no grid; whoever needs elements asks for them by global number.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/core/shape.h"

namespace cuboid {

/// Elements of a tensor in its flattened row-major order: `repeat` runs of `length`, their starts `stride` apart. One
/// run is a contiguous part; several are a column block of a matrix.
struct Slice {
  std::int64_t start = 0;
  std::int64_t length = 0;
  std::int64_t stride = 0;  ///< at least length; 0 if there is one run
  std::int64_t repeat = 1;
  std::int64_t elements() const { return length * repeat; }
  /// One past the last element.
  std::int64_t end() const { return start + stride * (repeat - 1) + length; }
  friend bool operator==(const Slice&, const Slice&) = default;
};

/// A slice in a file, as a tensor of its own: shape (length), (repeat, length), or the global shape where the slice is
/// the whole tensor.
struct StoredSlice {
  Slice slice;
  std::string file;            ///< in the checkpoint's folder
  std::string entry;           ///< name of the tensor in the file
  std::uint64_t checksum = 0;  ///< XXH3 of its bytes
};

struct CheckpointTensor {
  Shape shape;  ///< global
  std::vector<StoredSlice> slices;
};

struct CheckpointFile {
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;  ///< XXH3 of the header of a safetensors file (data has its own); else of the whole file
};

/// What tensors are called: kWeights + parameter name, and the two moments of Adam likewise. All are float32.
inline constexpr std::string_view kWeights = "weights/";
inline constexpr std::string_view kFirstMoments = "exp_avg/";
inline constexpr std::string_view kSecondMoments = "exp_avg_sq/";

struct CheckpointIndex {
  std::int64_t step = 0;             ///< optimizer steps done; the next one has this number
  std::int64_t samples = 0;          ///< samples of the training stream consumed
  std::uint64_t seed = 0;            ///< of the run that wrote it
  std::int64_t optimizer_steps = 0;  ///< updates that the moments have seen (bias correction)
  double loss = 0;                   ///< of the last step; not a number if there was none
  std::map<std::string, CheckpointTensor, std::less<>> tensors;
  std::map<std::string, CheckpointFile, std::less<>> files;
};

/// JSON text. Its first line holds a checksum of all that follows.
std::string write_checkpoint_index(const CheckpointIndex& index);

/// @param source  for messages
/// @throws Error{request} with every fault: a wrong checksum or format, duplicate keys, numbers out of range, slices
///         that leave their tensor, overlap or do not cover it, files that are not listed, names that leave the folder.
CheckpointIndex read_checkpoint_index(std::string_view text, const std::string& source);

/// The same for the part of an index that one rank wrote: slices need not cover their tensors.
CheckpointIndex read_partial_index(std::string_view text, const std::string& source);

/// Adds the slices and files of a part to the whole.
void merge_index(CheckpointIndex& whole, const CheckpointIndex& part);

/// Adds the tensors whose slices overlap or do not cover them.
void check_coverage(const CheckpointIndex& index, const std::string& source, Problems& problems);

/// XXH3 (64 bits) of bytes.
std::uint64_t checksum_of(const void* data, std::size_t size);

}  // namespace cuboid
