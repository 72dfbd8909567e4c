// Files a run leaves besides its metrics: gradient norms and the timeline. Private to train/.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "cuboid/comm/communicator.h"
#include "cuboid/parallel/pipeline/executor.h"

namespace cuboid {

/// @throws Error{request} naming --dump-grads, the path and the system's reason if the file cannot be created
void check_writable(const std::string& path);
/// {"name": norm, …} as JSON, numbers round-trip exact. @throws Error{failed} naming the path
void write_norms(const std::string& path, const std::map<std::string, double>& norms);

/// Every rank's numbers, by rank; collective.
std::vector<MemoryUse> gather_memory(const Device& device, Communicator& world, const MemoryUse& mine);

/// Spans of all steps of this rank, written together as a Chrome trace (chrome://tracing, Perfetto): a lane a rank.
class Timeline {
 public:
  explicit Timeline(bool enabled) : enabled_(enabled) {}
  void add(int step, std::chrono::steady_clock::time_point begin, const std::vector<Span>& spans);
  /// Collective over the world; rank 0 writes. @throws Error{failed} naming the path
  void write(const std::string& path, Communicator& world) const;

 private:
  struct Event {
    int step;
    Action action;
    double begin, seconds;  // seconds since the steady clock's epoch, and duration
  };
  bool enabled_;
  std::vector<Event> events_;
};

}  // namespace cuboid
