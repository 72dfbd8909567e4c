// What every fuzz target needs: bytes as a file, and refusals as the only way out. Anything but an Error{request}
// (another exception, a sanitizer's report, a hang) is a finding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

#include "cuboid/core/error.h"

namespace cuboid::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A file in memory with a path.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0 || ::write(fd_, data, size) != static_cast<ssize_t>(size)) std::abort();
    path_ = "/proc/self/fd/" + std::to_string(fd_);
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

/// Reads input; a refusal must be one of the request, and say something.
template <typename Read>
int refused_or_read(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::request || std::string_view(error.what()).empty()) std::abort();
  }
  return 0;
}

/// Keeps the compiler from leaving a read out.
inline volatile std::uint64_t sink = 0;

}  // namespace cuboid::fuzz
