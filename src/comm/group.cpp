#include "group.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

namespace cuboid::detail {
namespace {

std::string list_of(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace

Group::Group(std::shared_ptr<World> world, std::vector<int> world_ranks, std::string name)
    : world_(std::move(world)),
      world_ranks_(std::move(world_ranks)),
      name_(std::move(name)),
      entered_(world_ranks_.size()) {
  for (std::size_t r = 0; r < world_ranks_.size(); ++r) mailboxes_.push_back(std::make_unique<Mailbox>());
}

std::shared_ptr<Operation> Group::start(int rank, const Call& call, const Tensor& in, const Tensor& out,
                                        const SplitMember& choice, StreamMark ready) {
  std::shared_ptr<Operation> operation;
  bool last = false;
  {
    const std::scoped_lock lock(mutex_);
    const std::uint64_t sequence = entered_[rank]++;
    const std::uint64_t place = sequence - oldest_;
    if (place == gathering_.size()) {
      gathering_.push_back(std::make_shared<Operation>(call, sequence, size()));
      gathering_.back()->first_to_arrive = rank;
    }
    operation = gathering_[place];
    operation->in[rank] = in.defined() ? static_cast<std::byte*>(in.raw()) : nullptr;
    operation->out[rank] = out.defined() ? static_cast<std::byte*>(out.raw()) : nullptr;
    operation->held[rank] = {in.buffer(), out.buffer()};
    operation->ready[rank] = std::move(ready);
    if (operation->call != call) {
      note_mismatch(*operation, rank, call);
    } else if (call.kind == CallKind::split) {
      operation->split[rank] = choice;
    }
    operation->arrived[rank] = true;
    if (++operation->arrivals == size()) {
      gathering_.pop_front();
      ++oldest_;
      last = operation->mismatch.empty();
    }
  }
  if (last) {
    if (call.kind == CallKind::split) form_groups(*operation);
    if (!call.on_host) {
      run_on_gpu(*operation);
    } else if (operation->small()) {
      operation->help();
    } else {
      // More helpers than cores would only take turns. The others sleep on until it is complete.
      operation->phase.store(Operation::running, world_->cores() - 1);
    }
  }
  return operation;
}

void Group::run_on_gpu(Operation& operation) {
  // Operations of a group may be queued by any two of its members at once.
  const std::scoped_lock lock(gpu_mutex_);
  if (!gpu_) gpu_ = make_shared_gpu(size());
  operation.done = gpu_->run(operation);
  operation.phase.store(Operation::complete);
}

void Group::finish(int rank, Operation& operation) const {
  if (operation.phase.load() == Operation::gathering) {
    world_->throw_if_aborted();
    wait_for_arrivals(rank, operation);
  }
  if (operation.phase.load() == Operation::failed) throw Error(ErrorKind::failed, operation.mismatch);
  world_->throw_if_aborted();
  if (operation.phase.load() == Operation::running) {
    operation.help();
    world_->await(
        operation.phase, Clock::now(), [](std::uint32_t phase) { return phase == Operation::complete; },
        [&](double waited) {
          if (waited < world_->deadline()) return;
          throw Error(ErrorKind::deadline,
                      fmt::format("{}: all have arrived, but one has not finished its part after {:.3g} s",
                                  describe(rank, to_string(operation.call)), waited));
        });
  }
  operation.held[rank] = {};
}

void Group::wait_for_arrivals(int rank, Operation& operation) const {
  world_->await(
      operation.phase, Clock::now(), [](std::uint32_t phase) { return phase != Operation::gathering; },
      [&](double waited) {
        const auto what = [&] {
          return describe(rank, fmt::format("{}, operation {}", to_string(operation.call), operation.sequence));
        };
        if (world_->any_ended()) {
          const std::string never = missing(operation, true);
          if (!never.empty())
            throw Error(ErrorKind::failed, fmt::format("{}: {} ended without calling it", what(), never));
        }
        if (waited < world_->deadline()) return;
        throw Error(ErrorKind::deadline,
                    fmt::format("{}: still missing after {:.3g} s: {}", what(), waited, missing(operation, false)));
      });
}

std::string Group::missing(const Operation& operation, bool ended) const {
  std::vector<int> ranks;
  // A rank's end is looked at before its arrival: it may have arrived last thing before.
  std::vector<bool> has_ended;
  for (int r : world_ranks_) has_ended.push_back(world_->ended(r));
  const std::scoped_lock lock(mutex_);
  for (std::size_t r = 0; r < world_ranks_.size(); ++r) {
    if (!operation.arrived[r] && (has_ended[r] || !ended)) ranks.push_back(world_ranks_[r]);
  }
  return ranks.empty() ? "" : list_of(ranks);
}

std::string Group::describe(int rank, const std::string& what) const {
  return fmt::format("{} of communicator \"{}\" (member {} of {} waits)", what, name_, rank, size());
}

void Group::note_mismatch(Operation& operation, int rank, const Call& call) const {
  if (!operation.mismatch.empty()) return;  // others may be reading it
  const int first = operation.first_to_arrive;
  std::string lower = fmt::format("rank {} calls {}", world_ranks_[first], to_string(operation.call));
  std::string upper = fmt::format("rank {} calls {}", world_ranks_[rank], to_string(call));
  if (first > rank) std::swap(lower, upper);
  operation.mismatch = fmt::format("operation {} of communicator \"{}\" differs among its members: {}, but {}",
                                   operation.sequence, name_, lower, upper);
  operation.phase.store(Operation::failed);
}

void Group::form_groups(Operation& operation) const {
  std::map<int, std::vector<std::pair<int, int>>> colors;  // color → (key, rank)
  for (int r = 0; r < size(); ++r) {
    const SplitMember& member = operation.split[r];
    if (member.color >= 0) colors[member.color].emplace_back(member.key, r);
  }
  for (auto& [color, members] : colors) {
    std::sort(members.begin(), members.end());
    std::vector<int> world_ranks;
    for (const auto& [key, r] : members) world_ranks.push_back(world_ranks_[r]);
    const auto group = std::make_shared<Group>(world_, world_ranks, operation.split[members.front().second].name);
    for (std::size_t i = 0; i < members.size(); ++i) {
      SplitMember& member = operation.split[members[i].second];
      member.group = group;
      member.rank = static_cast<int>(i);
    }
  }
}

void Group::send(int rank, Message message, int to, int tag) {
  world_->throw_if_aborted();  // a rank that only sends never waits, and must stop all the same
  mailboxes_[to]->put(rank, tag, std::move(message));
}

std::uint64_t Group::claim_message(int rank, int from, int tag) {
  return mailboxes_[rank]->claim(from, tag);
}

Message Group::receive(int rank, int from, int tag, std::uint64_t claimed, const std::string& what) {
  world_->throw_if_aborted();
  Mailbox& mailbox = *mailboxes_[rank];
  const auto start = Clock::now();
  while (true) {
    const bool sender_ended = world_->ended(world_ranks_[from]);
    const std::uint32_t seen = mailbox.arrivals().load();
    if (auto message = mailbox.take(from, tag, claimed)) return *std::move(message);
    const auto whole = [&] {
      return describe(rank, fmt::format("recv of {} from rank {}, tag {}", what, world_ranks_[from], tag));
    };
    if (sender_ended) throw Error(ErrorKind::failed, whole() + ": the sender ended without sending it");
    // Also comes back when the sender ends, to look a last time.
    bool ended = false;
    world_->await(
        mailbox.arrivals(), start, [&](std::uint32_t arrivals) { return ended || arrivals != seen; },
        [&](double waited) {
          if (waited >= world_->deadline()) {
            throw Error(ErrorKind::deadline, fmt::format("{}: still missing after {:.3g} s", whole(), waited));
          }
          ended = world_->ended(world_ranks_[from]);
        });
  }
}

}  // namespace cuboid::detail
