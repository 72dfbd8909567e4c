// The messages on their way to one rank of a communicator.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "cuboid/runtime/tensor.h"

#include "cuda/shared_gpu.h"
#include "wait_word.h"

namespace cuboid::detail {

/// A tensor that was given away.
struct Message {
  Tensor tensor;
  StreamMark ready = {};  ///< of device memory: when it may be used
};

class Mailbox {
 public:
  /// Adds a message and wakes the receiver. Never waits.
  void put(int from, int tag, Message message);
  /// Claims the next message of that sender and tag that no earlier claim stands for.
  std::uint64_t claim(int from, int tag);
  /// The claimed message if it is here. A claim is fulfilled once.
  std::optional<Message> take(int from, int tag, std::uint64_t claimed);
  /// Changes whenever a message arrives.
  WaitWord& arrivals() { return arrivals_; }

 private:
  // Message number first + i is messages[i]; taken ones are undefined until all before them are taken, too.
  struct Channel {
    std::deque<Message> messages;
    std::uint64_t first = 0;
    std::uint64_t claims = 0;
  };
  using Key = std::pair<int, int>;  // sender, tag

  std::mutex mutex_;
  std::map<Key, Channel> channels_;
  WaitWord arrivals_;
};

}  // namespace cuboid::detail
