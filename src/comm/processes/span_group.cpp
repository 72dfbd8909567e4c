#include "span_group.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "exchange.h"

namespace cuboid::detail {

SpanGroup::SpanGroup(Exchange& exchange, std::shared_ptr<World> world, std::vector<int> ranks, int ranks_per_process,
                     std::uint64_t id, std::string name)
    : exchange_(exchange),
      world_(std::move(world)),
      ranks_(std::move(ranks)),
      ranks_per_process_(ranks_per_process),
      id_(id),
      name_(std::move(name)) {
  for (int m = 0; m < size(); ++m) {
    const int number = ranks_[m] / ranks_per_process_;
    const auto known = std::find(process_number_.begin(), process_number_.end(), number);
    const int process = static_cast<int>(known - process_number_.begin());
    if (known == process_number_.end()) {
      process_number_.push_back(number);
      members_.emplace_back();
    }
    if (number == exchange_.process()) here_ = process;
    process_of_member_.push_back(process);
    local_index_.push_back(number == exchange_.process() ? static_cast<int>(members_[process].size()) : -1);
    members_[process].push_back(m);
    if (stretches_.empty() || stretches_.back().process != process) {
      stretches_.push_back({process, m, m});
    } else {
      stretches_.back().last = m;
    }
  }
  for (auto stretch = stretches_.rbegin(); stretch != stretches_.rend(); ++stretch) {
    if (std::find(way_back_.begin(), way_back_.end(), stretch->process) == way_back_.end()) {
      way_back_.push_back(stretch->process);
    }
  }
  // Between hosts, chunks that follow each other keep the links busy in both directions; parts of a tensor, exchanged
  // in two rounds, leave them idle in between. On one host only members that share memory are worth it.
  std::set<std::string> hosts;
  std::size_t most_of_process = 0;
  for (std::size_t p = 0; p < members_.size(); ++p) {
    hosts.insert(exchange_.hosts()[static_cast<std::size_t>(process_number_[p])]);
    most_of_process = std::max(most_of_process, members_[p].size());
  }
  in_stretches_ = most_of_process > 1 || hosts.size() > 1;
  entered_.resize(locals());
  for (std::size_t i = 0; i < locals(); ++i) mailboxes_.push_back(std::make_unique<Mailbox>());
}

std::string SpanGroup::describe(int member, const std::string& what) const {
  return fmt::format("{} of communicator \"{}\" (member {} of {} waits)", what, name_, member, size());
}

Header SpanGroup::header(const SpanOperation& operation, ParcelKind kind) const {
  return {.kind = kind, .group = id_, .sequence = operation.sequence, .call = operation.call};
}

std::shared_ptr<SpanOperation> SpanGroup::operation(std::uint64_t sequence) {
  auto& entry = operations_[sequence];
  if (!entry) entry = std::make_shared<SpanOperation>(sequence, locals(), members_.size());
  return entry;
}

std::shared_ptr<SpanOperation> SpanGroup::start(int member, const Call& call, const Tensor& in, const Tensor& out,
                                                const SpanSplit& choice, const StreamMark& ready) {
  CUBOID_CHECK(ready == nullptr, "a collective of several processes in a GPU's memory");
  const std::scoped_lock lock(exchange_.mutex());
  const auto i = static_cast<std::size_t>(local_index_[member]);
  const auto entered = operation(entered_[i]++);
  SpanOperation& op = *entered;
  op.in[i] = in.defined() ? static_cast<std::byte*>(in.raw()) : nullptr;
  op.out[i] = out.defined() ? static_cast<std::byte*>(out.raw()) : nullptr;
  op.held[i] = {in.buffer(), out.buffer()};
  op.split[i] = choice;
  if (call.kind == CallKind::split) op.split[i].candidate = exchange_.fresh_id();
  op.arrived[i] = true;
  const bool agreed = !op.called || op.call == call;
  note_call(op, member, call);
  if (!agreed) {
    // The other processes learn it from this one: their own members may all agree with what they have heard.
    for (int p = 0; p < processes(); ++p) {
      if (p == here_) continue;
      Header header = this->header(op, ParcelKind::mismatch);
      header.bytes = static_cast<std::int64_t>(op.mismatch.size());
      const auto payload = exchange_.buffer(op.mismatch.size());
      std::copy_n(op.mismatch.data(), op.mismatch.size(), static_cast<char*>(payload->data()));
      exchange_.send(process_number_[p], header, static_cast<const std::byte*>(payload->data()), payload);
    }
  }
  if (++op.arrivals == locals()) launch(op);
  return entered;
}

// Keeps the first call and compares the others with it.
void SpanGroup::note_call(SpanOperation& op, int member, const Call& call) {
  if (!op.called) {
    op.called = true;
    op.call = call;
    op.caller = member;
    return;
  }
  if (op.call == call || !op.mismatch.empty()) return;
  std::string lower = fmt::format("rank {} calls {}", world_rank(op.caller), to_string(op.call));
  std::string upper = fmt::format("rank {} calls {}", world_rank(member), to_string(call));
  if (op.caller > member) std::swap(lower, upper);
  fail(op, fmt::format("operation {} of communicator \"{}\" differs among its members: {}, but {}", op.sequence, name_,
                       lower, upper));
}

void SpanGroup::fail(SpanOperation& op, const std::string& why) {
  if (op.phase.load() != SpanOperation::gathering) return;
  op.mismatch = why;
  op.phase.store(SpanOperation::failed);
}

// All members of this process have called it.
void SpanGroup::launch(SpanOperation& op) {
  for (int p = 0; p < processes(); ++p) {
    if (p == here_) continue;
    Header header = this->header(op, ParcelKind::contribution);
    header.from = op.caller;
    if (!is_local(op.caller)) header.from = own_members().front();
    std::shared_ptr<Buffer> payload;
    if (op.mismatch.empty()) payload = contribution(op, p, header.bytes);
    exchange_.send(process_number_[p], header, payload ? static_cast<const std::byte*>(payload->data()) : nullptr,
                   payload);
  }
  if (op.phase.load() == SpanOperation::gathering) {
    start_chunks(op);
    for (const Parcel& parcel : std::exchange(op.waiting, {})) take_chunk(op, parcel);
  }
  advance(op);
}

void SpanGroup::handle(Parcel& parcel) {
  const Header& header = parcel.header;
  if (header.kind == ParcelKind::message) {
    Tensor tensor(parcel.payload ? std::move(parcel.payload) : exchange_.buffer(0), 0,
                  Shape(std::vector<std::int64_t>(header.dim, header.dim + header.dims)), header.dtype);
    return mailbox(header.to).put(header.from, header.tag, {std::move(tensor)});
  }
  const bool known = operations_.contains(header.sequence);
  if (!known && std::all_of(entered_.begin(), entered_.end(), [&](auto n) { return n > header.sequence; })) {
    return;  // a chunk of an operation that failed
  }
  const auto entry = operation(header.sequence);
  SpanOperation& op = *entry;
  if (header.kind == ParcelKind::contribution) {
    const auto number = std::find(process_number_.begin(), process_number_.end(), parcel.process);
    const auto p = static_cast<std::size_t>(number - process_number_.begin());
    op.contributions[p] = parcel;
    op.contributed[p] = true;
    ++op.contributors;
    note_call(op, header.from, header.call);
    return advance(op);
  }
  if (op.phase.load() == SpanOperation::failed) return;
  if (header.kind == ParcelKind::mismatch) {
    return fail(op, {reinterpret_cast<const char*>(parcel.data()), static_cast<std::size_t>(header.bytes)});
  }
  if (op.arrivals < locals()) {
    op.waiting.push_back(parcel);
    return;
  }
  take_chunk(op, parcel);
  advance(op);
}

void SpanGroup::advance(SpanOperation& op) {
  const bool all_here = op.arrivals == locals() && op.contributors + 1 == members_.size();
  if (op.phase.load() == SpanOperation::gathering && all_here) {
    if (!op.combined) {
      op.combined = true;
      combine(op);
    }
    if (op.chunks == 0) {
      op.contributions.clear();
      op.phase.store(SpanOperation::complete);
    }
  }
  if (all_here && op.phase.load() != SpanOperation::gathering) operations_.erase(op.sequence);
}

void SpanGroup::finish(int member, SpanOperation& op) {
  const auto i = static_cast<std::size_t>(local_index_[member]);
  if (op.phase.load() == SpanOperation::gathering) {
    world_->throw_if_aborted();
    exchange_.await(
        *world_, op.phase, [](std::uint32_t phase) { return phase != SpanOperation::gathering; },
        [&](double waited) {
          const auto what = [&] {
            return describe(member, fmt::format("{}, operation {}", to_string(op.call), op.sequence));
          };
          if (world_->any_ended()) {
            const std::string never = missing(op, true);
            if (!never.empty()) {
              throw Error(ErrorKind::failed, fmt::format("{}: {} ended without calling it", what(), never));
            }
          }
          if (waited < world_->deadline()) return;
          const std::string late = missing(op, false);
          throw Error(ErrorKind::deadline, fmt::format("{}: still missing after {:.3g} s: {}", what(), waited,
                                                       late.empty() ? "chunks of a member's data" : late));
        });
  }
  if (op.phase.load() == SpanOperation::failed) throw Error(ErrorKind::failed, op.mismatch);
  world_->throw_if_aborted();
  op.held[i] = {};
}

// Members that have not arrived, as far as this process knows; or only those of them that never will.
std::string SpanGroup::missing(const SpanOperation& op, bool only_ended) const {
  std::vector<bool> ended;
  for (int rank : ranks_) ended.push_back(world_->ended(rank));
  const std::scoped_lock lock(exchange_.mutex());
  std::vector<int> ranks;
  for (int m = 0; m < size(); ++m) {
    const bool here = is_local(m) ? op.arrived[static_cast<std::size_t>(local_index_[m])]
                                  : op.contributed[static_cast<std::size_t>(process_of_member_[m])];
    if (!here && (ended[static_cast<std::size_t>(m)] || !only_ended)) ranks.push_back(world_rank(m));
  }
  if (ranks.empty()) return "";
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

void SpanGroup::send(int member, Message message, int to, int tag) {
  world_->throw_if_aborted();
  if (is_local(to)) return mailbox(to).put(member, tag, std::move(message));
  const Tensor& tensor = message.tensor;
  CUBOID_CHECK(tensor.on_host(), "a message to another process that is in a GPU's memory");
  CUBOID_CHECK(tensor.shape().rank() <= kMostDims, to_string(tensor.shape()));
  Header header{.kind = ParcelKind::message, .group = id_, .from = member, .to = to, .tag = tag};
  header.dtype = tensor.dtype();
  header.dims = tensor.shape().rank();
  std::copy(tensor.shape().dims().begin(), tensor.shape().dims().end(), header.dim);
  header.bytes = static_cast<std::int64_t>(tensor.bytes());
  const std::scoped_lock lock(exchange_.mutex());
  exchange_.send(process_number_[process_of_member_[to]], header, static_cast<const std::byte*>(tensor.raw()),
                 tensor.buffer());
}

Message SpanGroup::receive(int member, int from, int tag, std::uint64_t claimed, const std::string& what) {
  world_->throw_if_aborted();
  Mailbox& box = mailbox(member);
  const auto start = Clock::now();
  const auto whole = [&] {
    return describe(member, fmt::format("recv of {} from rank {}, tag {}", what, world_rank(from), tag));
  };
  while (true) {
    const bool sender_ended = world_->ended(world_rank(from));
    const std::uint32_t seen = box.arrivals().load();
    if (auto message = box.take(from, tag, claimed)) return *std::move(message);
    if (sender_ended) throw Error(ErrorKind::failed, whole() + ": the sender ended without sending it");
    bool ended = false;
    exchange_.await(
        *world_, box.arrivals(), [&](std::uint32_t arrivals) { return ended || arrivals != seen; },
        [&](double) {
          const double waited = std::chrono::duration<double>(Clock::now() - start).count();
          if (waited >= world_->deadline()) {
            throw Error(ErrorKind::deadline, fmt::format("{}: still missing after {:.3g} s", whole(), waited));
          }
          ended = world_->ended(world_rank(from));
        });
  }
}

}  // namespace cuboid::detail
