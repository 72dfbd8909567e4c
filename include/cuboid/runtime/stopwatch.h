// Times by a device's own clock: on a GPU when queued work ran, not when the host queued it.
#pragma once

#include <memory>
#include <vector>

#include "cuboid/runtime/device.h"

namespace cuboid {

/// A row of places in the device's queue of work, each with its time (CUDA's events; on a CPU the steady clock).
class Stopwatch {
 public:
  /// @param most  laps that will be made: all that they need is there beforehand
  Stopwatch(const Device& device, int most);
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  /// The place behind everything queued so far. Waits for nothing. @pre called at most `most` times
  void lap();
  /// Seconds from each place to the next, one fewer than there are. Waits for the last.
  std::vector<double> seconds() const;

  /// What a kind of device implements.
  struct Laps {
    virtual ~Laps() = default;
    virtual void lap() = 0;
    virtual std::vector<double> seconds() const = 0;
  };

 private:
  std::unique_ptr<Laps> laps_;
};

}  // namespace cuboid
