// Streams and events that are destroyed with their owner. A stream is a queue of work on a GPU; an event is a place in
// a stream that another one can be made to wait for.
#pragma once

#include <memory>

#include "check.h"

namespace cuboid::cuda {

/// Not for sharing between threads while it is recorded.
class Event {
 public:
  /// Of the current device; without time stamps, which would cost time on the GPU.
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  cudaEvent_t get() const { return event_; }
  /// True when everything before the place last recorded is done.
  bool done() const;

 private:
  cudaEvent_t event_ = nullptr;
};

/// A place in a stream: what was queued there up to now. Shared by those who wait for it.
using Mark = std::shared_ptr<Event>;

class Stream {
 public:
  /// Of the current device; does not wait for the legacy default stream.
  Stream();
  /// Waits for what is queued.
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  /// A new event behind everything queued so far.
  Mark mark() const;
  /// What is queued from here on starts after the mark. The host does not wait.
  void wait(const Mark& mark) const;
  /// The host waits until everything queued is done.
  void synchronize() const;

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace cuboid::cuda
