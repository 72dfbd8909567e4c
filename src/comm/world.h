// What all ranks of one process share, whatever communicators they split off: whether one has failed, how long a wait
// may last, and how to wait.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>

#include "cuboid/comm/communicator.h"

#include "wait_word.h"

namespace cuboid::detail {

using Clock = std::chrono::steady_clock;

class World {
 public:
  /// @param deadline          longest wait in seconds
  /// @param threads_per_rank  threads that a rank keeps busy, to judge whether spinning steals a core
  /// @param busy              ranks that share this machine's cores; 0: all
  World(int size, double deadline, int threads_per_rank, int busy = 0);

  int size() const { return size_; }
  double deadline() const { return deadline_; }
  /// How many threads can run at once.
  int cores() const { return cores_; }

  void abort() { aborted_.store(true, std::memory_order_seq_cst); }
  void throw_if_aborted() const {
    if (aborted_.load(std::memory_order_acquire)) throw Aborted();
  }
  /// The rank will start nothing more.
  void mark_ended(int rank) {
    ended_[rank].store(true, std::memory_order_release);
    any_ended_.store(true, std::memory_order_release);
  }
  bool any_ended() const { return any_ended_.load(std::memory_order_acquire); }
  bool ended(int rank) const { return ended_[rank].load(std::memory_order_acquire); }

  /// Waits until ready(word's value): a short spin, then sleep. How long a thread spins depends on whether it helped
  /// the last times: it does not when the other one waits for this core, whatever the number of cores.
  /// @param check  called now and then while sleeping with the seconds waited so far; throws to give up
  /// @throws Aborted after abort()
  template <typename Ready, typename Check>
  void await(WaitWord& word, Clock::time_point start, Ready ready, Check check) const {
    int& spins = spins_of_this_thread();
    spins = std::min(spins, most_spins_);
    for (int i = 0; i < spins; ++i) {
      if (ready(word.load())) {
        spins = 2 * spins;
        return;
      }
      pause();
    }
    spins = std::max(kFewestSpins, spins / 2);
    while (true) {
      const std::uint32_t seen = word.load();
      if (ready(seen)) return;
      throw_if_aborted();
      const double waited = std::chrono::duration<double>(Clock::now() - start).count();
      check(waited);
      word.sleep(seen, slice(waited));
    }
  }

 private:
  static constexpr int kFewestSpins = 100;
  static int& spins_of_this_thread();
  /// The next sleep: short enough to notice an abort soon and the deadline in time.
  std::chrono::nanoseconds slice(double waited) const;

  int size_;
  double deadline_;
  int cores_;
  int most_spins_;
  std::unique_ptr<std::atomic<bool>[]> ended_;
  alignas(64) std::atomic<bool> aborted_ = false;
  std::atomic<bool> any_ended_ = false;
};

}  // namespace cuboid::detail
