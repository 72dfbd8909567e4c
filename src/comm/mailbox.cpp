#include "mailbox.h"

namespace cuboid::detail {

void Mailbox::put(int from, int tag, Message message) {
  {
    const std::scoped_lock lock(mutex_);
    channels_[{from, tag}].messages.push_back(std::move(message));
  }
  arrivals_.increment();
}

std::uint64_t Mailbox::claim(int from, int tag) {
  const std::scoped_lock lock(mutex_);
  return channels_[{from, tag}].claims++;
}

std::optional<Message> Mailbox::take(int from, int tag, std::uint64_t claimed) {
  const std::scoped_lock lock(mutex_);
  const auto found = channels_.find({from, tag});
  Channel& channel = found->second;
  const std::uint64_t place = claimed - channel.first;
  if (place >= channel.messages.size()) return std::nullopt;
  Message message = std::exchange(channel.messages[place], Message());
  while (!channel.messages.empty() && !channel.messages.front().tensor.defined()) {
    channel.messages.pop_front();
    ++channel.first;
  }
  // Tags may be used once only: an idle channel is forgotten.
  if (channel.messages.empty() && channel.first == channel.claims) channels_.erase(found);
  return message;
}

}  // namespace cuboid::detail
