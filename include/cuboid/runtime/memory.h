// Memory that is accounted for: every buffer belongs to a rank's arena and to a category, so that what was planned can
// be compared with what was allocated (law 6).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cuboid/core/error.h"

namespace cuboid {

/// What a buffer is for.
enum class Category : std::uint8_t { parameters, gradients, optimizer, activations, communication, workspace };
inline constexpr int kCategoryCount = 6;
const char* name_of(Category category);

/// Bytes by category, and of all together: of peaks less than the sum, since not all are reached at once.
struct MemoryUse {
  std::array<std::int64_t, kCategoryCount> bytes{};
  std::int64_t total = 0;
  std::int64_t operator[](Category category) const { return bytes[static_cast<std::size_t>(category)]; }
  friend bool operator==(const MemoryUse&, const MemoryUse&) = default;
};

/// Bytes that may be live at once in all accounts that share it: one rank's own limit, or that of a process whose ranks
/// share a machine. Thread safe.
class MemoryLimit {
 public:
  /// @param source  what set it, as messages name it: "--memory-limit 2 GiB"
  MemoryLimit(std::int64_t bytes, std::string source) : bytes_(bytes), source_(std::move(source)) {}
  std::int64_t bytes() const { return bytes_; }
  const std::string& source() const { return source_; }
  /// False, and nothing taken, if the limit would be passed.
  bool take(std::int64_t bytes);
  void give(std::int64_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  std::int64_t bytes_;
  std::string source_;
  std::atomic<std::int64_t> taken_ = 0;
};

/// A buffer that would pass a limit was asked for. The message has the account's bytes by category.
class MemoryExceeded : public Error {
 public:
  explicit MemoryExceeded(const std::string& message) : Error(ErrorKind::failed, message) {}
};

/// Live and peak bytes by category. Thread safe: a buffer may be freed by the rank it was handed to.
class MemoryAccount {
 public:
  /// From now on more than the limit's bytes are refused. @pre called once, before other threads use the account
  void set_limit(std::shared_ptr<MemoryLimit> limit);
  /// @throws MemoryExceeded, with nothing added
  void add(Category category, std::int64_t bytes);
  void subtract(Category category, std::int64_t bytes);
  /// Forgets past peaks: they become the present values.
  void reset_peaks();
  std::int64_t live(Category category) const;
  std::int64_t peak(Category category) const;
  /// Peak of the sum over categories.
  std::int64_t peak_total() const { return peak_total_.load(std::memory_order_relaxed); }
  MemoryUse live() const;
  MemoryUse peaks() const;

 private:
  std::shared_ptr<MemoryLimit> limit_;
  std::array<std::atomic<std::int64_t>, kCategoryCount> live_{};
  std::array<std::atomic<std::int64_t>, kCategoryCount> peak_{};
  std::atomic<std::int64_t> live_total_ = 0;
  std::atomic<std::int64_t> peak_total_ = 0;
};

/// Where a device's memory comes from, and how it is moved about. Thread safe: a buffer may end on another rank's
/// thread.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// Uninitialised, 256-byte aligned; null on a device without data. @throws std::bad_alloc
  virtual void* allocate(std::size_t bytes) = 0;
  /// @param bytes  as it was allocated with
  virtual void release(void* data, std::size_t bytes) = 0;
  /// Between two places of this source.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void zero(void* data, std::size_t bytes) = 0;

  /// True if the host may read and write it.
  virtual bool on_host() const { return true; }
  /// From and to host memory; the latter waits for what is queued.
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes) { copy(to, from, bytes); }
  /// Waits until everything queued is done.
  virtual void synchronize() {}
};

/// The process's pool of host memory: a training step asks for the same sizes again and again, and fresh pages from the
/// kernel would cost more than the kernels that fill them.
std::shared_ptr<MemorySource> host_memory();
/// No memory at all: buffers are counted, and have no data.
std::shared_ptr<MemorySource> meta_memory();

/// One allocation. Returned to its source when the last tensor that uses it goes.
class Buffer {
 public:
  /// Uninitialised memory. `bytes` are counted exactly. @throws std::bad_alloc, MemoryExceeded
  Buffer(std::shared_ptr<MemorySource> memory, std::shared_ptr<MemoryAccount> account, Category category,
         std::size_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  /// @throws std::logic_error on a device without data
  void* data() const {
    CUBOID_CHECK(data_ != nullptr, "a tensor of the meta device has no data");
    return data_;
  }
  std::size_t bytes() const { return bytes_; }
  MemorySource& memory() const { return *memory_; }
  /// Moves the bytes to another rank's source and account: a hand-over between ranks of one process, whose sources give
  /// memory of the same kind.
  /// @throws MemoryExceeded, with nothing changed
  void rehome(std::shared_ptr<MemorySource> memory, std::shared_ptr<MemoryAccount> account, Category category);

 private:
  std::shared_ptr<MemorySource> memory_;
  std::shared_ptr<MemoryAccount> account_;
  Category category_;
  std::size_t bytes_;
  void* data_;
};

}  // namespace cuboid
