#include "cuboid/formats/durable.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "cuboid/core/error.h"

namespace cuboid {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw Error(ErrorKind::failed, fmt::format("{}: {}: {}", path, what, std::strerror(error)));
}

std::string parent_of(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void rename_to(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail(to, "cannot be renamed into place", errno);
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(fmt::format("{}.tmp.{}", path, ::getpid())) {
  fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("cannot be created");
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!committed_) ::unlink(temporary_.c_str());
}

constexpr std::size_t kWriteAtOnce = 8 << 20;

void AtomicFile::write(const void* data, std::size_t size) {
  const auto* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(fd_, from, std::min(size, kWriteAtOnce));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail("cannot be written");
    from += done;
    size -= static_cast<std::size_t>(done);
    written_ += static_cast<std::uint64_t>(done);
    if (written_ - started_ >= kWriteAtOnce) {
      // The disk begins now and not at the sync, beside what is written next. Only a hint: commit() checks.
      ::sync_file_range(fd_, static_cast<off64_t>(started_), static_cast<off64_t>(written_ - started_),
                        SYNC_FILE_RANGE_WRITE);
      started_ = written_;
    }
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail("cannot be synced to the disk");
  // close may be the first to report a full disk or quota on network file systems.
  if (::close(std::exchange(fd_, -1)) != 0) fail("cannot be closed");
  rename_to(temporary_, path_);
  committed_ = true;
  sync_folder(parent_of(path_));
}

void AtomicFile::fail(const char* what) const {
  cuboid::fail(path_, what, errno);
}

void write_durably(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content.data(), content.size());
  file.commit();
}

void sync_folder(const std::string& path) {
  const int folder = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) fail(path, "cannot be opened", errno);
  const int status = ::fsync(folder);
  const int error = errno;
  ::close(folder);
  // EINVAL: the file system has no such operation for folders.
  if (status != 0 && error != EINVAL) fail(path, "cannot be synced to the disk", error);
}

void replace_folder(const std::string& from, const std::string& to) {
  const bool there = fs::exists(fs::symlink_status(to));
  const bool exchanged = there && ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0;
  if (there && !exchanged) {
    // A file system without the exchange: for a moment there is neither.
    if (errno != EINVAL && errno != ENOSYS) fail(to, "cannot be replaced", errno);
    remove_folder(to);
  }
  if (!exchanged) rename_to(from, to);
  sync_folder(parent_of(to));
  if (exchanged) remove_folder(from);
}

void switch_link(const std::string& link, const std::string& target) {
  const std::string temporary = fmt::format("{}.tmp.{}", link, ::getpid());
  ::unlink(temporary.c_str());
  if (::symlink(target.c_str(), temporary.c_str()) != 0) fail(temporary, "cannot be created", errno);
  if (::rename(temporary.c_str(), link.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    fail(link, "cannot be switched", error);
  }
  sync_folder(parent_of(link));
}

void remove_folder(const std::string& path) {
  std::string doomed = path;
  if (!path.ends_with(".tmp")) {
    doomed += ".removed.tmp";
    std::error_code ignored;
    fs::remove_all(doomed, ignored);
    if (::rename(path.c_str(), doomed.c_str()) != 0) fail(path, "cannot be removed", errno);
  }
  std::error_code fault;
  fs::remove_all(doomed, fault);
  if (fault) fail(path, "cannot be removed", fault.value());
}

std::unique_ptr<FolderLock> FolderLock::take(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) throw Error(ErrorKind::request, fmt::format("{}: cannot be locked: {}", path, std::strerror(errno)));
  auto lock = std::unique_ptr<FolderLock>(new FolderLock(fd));
  std::array<char, 256> holder{};
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    const ssize_t size = ::pread(fd, holder.data(), holder.size() - 1, 0);
    const std::string_view who(holder.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
    if (error != EWOULDBLOCK) {
      throw Error(ErrorKind::request, fmt::format("{}: cannot be locked: {}", path, std::strerror(error)));
    }
    throw Error(ErrorKind::request, fmt::format("{}: the folder is in use by another run{}{}", parent_of(path),
                                                who.empty() ? "" : ": ", who));
  }
  ::gethostname(holder.data(), holder.size() - 1);
  const std::string text = fmt::format("process {} on {}", ::getpid(), holder.data());
  // Only a help for the message above: the lock is the lock's.
  if (::ftruncate(fd, 0) != 0 || ::pwrite(fd, text.data(), text.size(), 0) < 0) return lock;
  return lock;
}

FolderLock::~FolderLock() {
  ::close(fd_);
}

}  // namespace cuboid
