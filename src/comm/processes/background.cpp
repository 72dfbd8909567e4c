// What goes on beside the rank threads: progress while they compute, signs of life, and a decent end when the launcher
// or a failure wants one.
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>

#include "cuboid/core/log.h"

#include "exchange.h"

namespace cuboid::detail {
namespace {

constexpr auto kEvery = std::chrono::milliseconds(1);
constexpr double kHeartbeatEvery = 0.5;
// After a failure, rank threads that neither communicate nor end are given up after this time.
constexpr double kMostSecondsToStop = 6.0;

volatile std::sig_atomic_t g_told_to_end = 0;

void note_signal(int) {
  g_told_to_end = 1;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void Exchange::work_in_background() {
  std::signal(SIGTERM, note_signal);
  Clock::time_point beat = Clock::now();
  Clock::time_point last = beat;
  while (!ending_) {
    std::this_thread::sleep_for(kEvery);
    if (g_told_to_end != 0) terminate();
    try {
      poll();
      const double since_last = seconds_since(std::exchange(last, Clock::now()));
      if (since_last < 1.0 && seconds_since(beat) < kHeartbeatEvery) continue;
      beat = Clock::now();
      const std::scoped_lock lock(mutex_);
      for (int p = process() == 0 ? 1 : 0; p < (process() == 0 ? processes() : 1); ++p) {
        send(p, {.kind = ParcelKind::heartbeat});
      }
      watch_others(since_last);
      if (run_ && run_->stopped && seconds_since(run_->failed_at) > kMostSecondsToStop) {
        const Failure& why = run_->over ? run_->outcome : run_->cause;
        if (speaks()) log::error(why.text + " (a rank went on computing and was ended)");
        _exit(why.exit_status());
      }
    } catch (const std::exception& error) {
      log::error(fmt::format("{}: {}", describe_process(process()), error.what()));
      _exit(3);
    }
  }
}

// mpirun ends everybody when one process dies: say what the others were at.
void Exchange::terminate() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (int i = 0; i < 100 && !lock.owns_lock(); ++i) {
    std::this_thread::sleep_for(kEvery);
    lock.try_lock();
  }
  if (lock.owns_lock() && run_ && !run_->over) {
    std::string lines;
    for (const auto& recorder : run_->recorders) lines += "\n" + recorder->line();
    log::error(fmt::format("{} was told to end by the launcher, as when another process has died:{}",
                           describe_process(process()), lines));
  }
  _exit(3);
}

}  // namespace cuboid::detail
