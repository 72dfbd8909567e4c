#include "cuboid/formats/mapped_file.h"

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuboid/core/error.h"

namespace cuboid {
namespace {

/// Below this a copy costs less than the page tables of a mapping.
constexpr std::size_t kCopyBelow = std::size_t{256} << 10;

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw Error(ErrorKind::request, path + ": " + reason);
}

void read_all(const std::string& path, int fd, std::byte* out, std::size_t size) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::read(fd, out + done, size - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(path, std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0) refuse(path, "became shorter while it was read");
    done += static_cast<std::size_t>(got);
  }
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path) {
  // Nonblocking, so that a pipe without a writer is refused instead of waited for.
  const Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) refuse(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat status {};
  if (::fstat(file.fd, &status) != 0) refuse(path, std::string("cannot be read: ") + std::strerror(errno));
  if (S_ISDIR(status.st_mode)) refuse(path, "is a folder, not a file");
  if (!S_ISREG(status.st_mode)) refuse(path, "is not a regular file");

  std::shared_ptr<MappedFile> mapped(new MappedFile());
  mapped->path_ = path;
  mapped->size_ = static_cast<std::size_t>(status.st_size);
  if (mapped->size_ < kCopyBelow) {
    mapped->copy_ = std::make_unique<std::byte[]>(mapped->size_);
    mapped->data_ = mapped->copy_.get();
    read_all(path, file.fd, mapped->copy_.get(), mapped->size_);
    return mapped;
  }
  void* address = ::mmap(nullptr, mapped->size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (address == MAP_FAILED) refuse(path, std::string("cannot be mapped into memory: ") + std::strerror(errno));
  mapped->data_ = static_cast<const std::byte*>(address);
  return mapped;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr && !copy_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace cuboid
