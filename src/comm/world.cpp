#include "world.h"

#include <ctime>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace cuboid::detail {
namespace {

// Spinning catches a partner that is about to arrive without the microseconds of a sleep (a pause takes about 13 ns).
// Where ranks outnumber the cores, the partner is likely to be waiting for this very core.
constexpr int kMostSpins = 2000;
constexpr int kMostSpinsOversubscribed = 200;
// Sleepers look up this often for an abort.
constexpr double kSlice = 0.02;

}  // namespace

void WaitWord::wake(int limit) {
  syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, limit, nullptr, nullptr, 0);
}

void WaitWord::block(std::uint32_t seen, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  timespec timeout{};
  timeout.tv_sec = seconds.count();
  timeout.tv_nsec = (limit - seconds).count();
  // Whatever it returns (woken, changed value, time out, signal), the caller looks at the value again.
  syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
}

World::World(int size, double deadline, int threads_per_rank, int busy)
    : size_(size),
      deadline_(deadline),
      cores_(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))),
      most_spins_((busy > 0 ? busy : size) * threads_per_rank <= cores_ ? kMostSpins : kMostSpinsOversubscribed),
      ended_(std::make_unique<std::atomic<bool>[]>(static_cast<std::size_t>(size))) {}

int& World::spins_of_this_thread() {
  thread_local int spins = kMostSpins;
  return spins;
}

std::chrono::nanoseconds World::slice(double waited) const {
  const double seconds = std::clamp(deadline_ - waited, 1e-4, kSlice);
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

}  // namespace cuboid::detail
