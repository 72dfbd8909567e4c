#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "cuboid/formats/safetensors.h"

#include "json_text.h"

namespace cuboid {
namespace {

/// A file that appears under its name only when commit() has found every byte on the disk.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path) : path_(path), temporary_(fmt::format("{}.tmp.{}", path, ::getpid())) {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd_ < 0) fail("cannot be created");
  }
  ~AtomicFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!committed_) ::unlink(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t size) {
    const auto* from = static_cast<const char*>(data);
    while (size > 0) {
      const ssize_t done = ::write(fd_, from, size);
      if (done < 0 && errno == EINTR) continue;
      if (done < 0) fail("cannot be written");
      from += done;
      size -= static_cast<std::size_t>(done);
    }
  }

  void commit() {
    if (::fsync(fd_) != 0) fail("cannot be synced to the disk");
    // close may be the first to report a full disk or quota on network file systems.
    if (::close(std::exchange(fd_, -1)) != 0) fail("cannot be closed");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be renamed into place");
    committed_ = true;
    sync_folder();
  }

 private:
  /// The rename itself must survive a crash.
  void sync_folder() {
    const auto parent = std::filesystem::path(path_).parent_path();
    const int folder = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) fail("folder cannot be opened");
    const int status = ::fsync(folder);
    const int error = errno;
    ::close(folder);
    errno = error;
    // EINVAL: the file system has no such operation for folders.
    if (status != 0 && error != EINVAL) fail("folder cannot be synced to the disk");
  }

  [[noreturn]] void fail(const char* what) const {
    throw Error(ErrorKind::failed, fmt::format("{}: {}: {}", path_, what, std::strerror(errno)));
  }

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool committed_ = false;
};

}  // namespace

void write_safetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata) {
  // Keys in the order of the data, as readers that stream expect.
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const TensorToWrite& tensor : tensors) {
    CUBOID_CHECK(tensor.name != "__metadata__" && !header.contains(tensor.name), "tensor name " + tensor.name);
    CUBOID_CHECK(static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.type) == tensor.bytes.size() &&
                     tensor.type != StoredType::unknown,
                 "bytes of tensor " + tensor.name);
    header[tensor.name] = {{"dtype", name_of(tensor.type)},
                           {"shape", tensor.shape.dims()},
                           {"data_offsets", {at, at + tensor.bytes.size()}}};
    at += tensor.bytes.size();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data begins aligned
  const std::uint64_t length = text.size();

  AtomicFile file(path);
  file.write(&length, sizeof(length));
  file.write(text.data(), text.size());
  for (const TensorToWrite& tensor : tensors) file.write(tensor.bytes.data(), tensor.bytes.size());
  file.commit();
}

}  // namespace cuboid
