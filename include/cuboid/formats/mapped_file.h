// A file's bytes, read-only. Large files are memory-mapped and small ones read, so that a folder of many small files
// does not use up the process's mappings. A file that another program shortens while it is mapped raises SIGBUS: input
// files must not change during a run.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace cuboid {

class MappedFile {
 public:
  /// @throws Error{request} naming the path and the system's reason; a folder, pipe or device is refused.
  static std::shared_ptr<const MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile() = default;

  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::unique_ptr<std::byte[]> copy_;  ///< small files; data_ points into it
};

}  // namespace cuboid
