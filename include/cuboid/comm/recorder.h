// What a rank has communicated lately and what it waits for: the answer to "why does it hang?". A communicator wrapped
// by traced() writes it; whoever reports a failure reads it, from any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cuboid/comm/communicator.h"

namespace cuboid {

class Recorder {
 public:
  static constexpr int kKept = 64;

  explicit Recorder(int rank) : rank_(rank) {}

  /// A communication starts. Returns its number, counted from 0 over all communicators of the rank.
  std::uint64_t started(const char* operation, const std::string& group, std::int64_t bytes, int peer = -1);
  void waits(std::uint64_t number);
  void goes_on();
  /// The schedule's action that the rank is at, in the schedule's words ("2F1"); empty: none.
  void set_action(std::string action);

  /// "rank 3 waits 1.2 s for all_reduce of 4096 bytes on "tp" (operation 17 there), in action 2F1; before that: …".
  std::string line() const;
  /// line() and below it, indented, the last kKept communications, oldest first.
  std::string report() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Communication {
    const char* operation = "";
    std::string group;
    std::int64_t bytes = 0;
    int peer = -1;
    std::uint64_t sequence = 0;  // on its group
  };
  static std::string describe(const Communication& communication);

  const int rank_;
  mutable std::mutex mutex_;
  std::array<Communication, kKept> last_;
  std::uint64_t count_ = 0;
  std::map<std::string, std::uint64_t> sequences_;
  Communication waited_for_;
  bool waiting_ = false;
  Clock::time_point since_;
  std::string action_;
};

/// The recorder of the rank that this thread runs; null on other threads.
Recorder* recorder_of_this_thread();
void set_recorder_of_this_thread(Recorder* recorder);

/// The same communicator; what it and those split off it do is recorded.
std::unique_ptr<Communicator> traced(std::unique_ptr<Communicator> inner, std::shared_ptr<Recorder> recorder);

}  // namespace cuboid
