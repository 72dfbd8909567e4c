// Files that survive a crash: written under another name, synced, renamed; and a folder that only one process uses.
// Every fault of write, sync, close and rename is an Error{failed} that names the path and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace cuboid {

/// A file that appears under its name only when commit() has found every byte on the disk; otherwise nothing of it is
/// left behind.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t size);
  void commit();

 private:
  [[noreturn]] void fail(const char* what) const;

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  std::uint64_t written_ = 0;
  std::uint64_t started_ = 0;  // of written_, that the disk has been told to begin with
  bool committed_ = false;
};

/// Writes a whole file so.
void write_durably(const std::string& path, std::string_view content);

/// Syncs a folder's entries: names made or renamed in it survive a crash.
void sync_folder(const std::string& path);

/// Puts the folder `from` in the place of `to`, in one rename; what was there before is removed afterwards. Both lie in
/// one parent folder.
void replace_folder(const std::string& from, const std::string& to);

/// Makes `link` a symbolic link to `target` in one rename, whatever it was before.
void switch_link(const std::string& link, const std::string& target);

/// Removes a folder and what is in it. It gets another name first, so that no half of it can be taken for the whole.
void remove_folder(const std::string& path);

/// Holds a folder for this process until it is destroyed or the process ends, however it ends.
class FolderLock {
 public:
  /// Locks the file `path`, made if need be. @throws Error{request} naming the path and the process that holds it, or
  /// the system's reason
  static std::unique_ptr<FolderLock> take(const std::string& path);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  explicit FolderLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace cuboid
