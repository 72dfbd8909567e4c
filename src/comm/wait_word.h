// A number that threads can wait on: spinning is the caller's business, sleeping is a futex with a time limit. Like
// std::atomic::wait, which has no time limit in C++20 and so could notice neither an abort nor a deadline.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

namespace cuboid::detail {

class WaitWord {
 public:
  std::uint32_t load() const { return value_.load(std::memory_order_acquire); }

  /// Publishes a value, then wakes up to `limit` sleepers.
  void store(std::uint32_t value, int limit = INT_MAX) {
    value_.store(value, std::memory_order_seq_cst);
    if (limit > 0 && sleepers_.load(std::memory_order_seq_cst) > 0) wake(limit);
  }
  /// Adds one and wakes all sleepers.
  void increment() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) wake(INT_MAX);
  }
  /// Sleeps while the value is `seen`, at most for `limit`. May return early.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds limit) {
    // Either the waker sees this count, or the kernel sees the waker's value: both sides are sequentially consistent.
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    if (value_.load(std::memory_order_seq_cst) == seen) block(seen, limit);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  void wake(int limit);
  void block(std::uint32_t seen, std::chrono::nanoseconds limit);

  std::atomic<std::uint32_t> value_ = 0;
  std::atomic<std::uint32_t> sleepers_ = 0;
  static_assert(sizeof(std::atomic<std::uint32_t>) == 4, "a futex is 32 bits");
};

/// Tells the core that this is a spin loop.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace cuboid::detail
