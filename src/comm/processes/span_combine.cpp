// What a process sends another for a collective, and what it makes of the others' contributions.
#include <algorithm>
#include <cstring>

#include "../reduce.h"
#include "exchange.h"
#include "span_group.h"

namespace cuboid::detail {
namespace {

std::int64_t width_of(const SpanOperation& op) {
  return static_cast<std::int64_t>(size_of(op.call.dtype));
}

void copy_bytes(const std::byte* from, std::byte* to, std::int64_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

// Elements [first, second) of an all_reduce are added up by this process.
std::pair<std::int64_t, std::int64_t> SpanGroup::slice(std::int64_t count, int process) const {
  return {count * process / processes(), count * (process + 1) / processes()};
}

// Layout by kind: all_reduce: members × elements (all, or the receiver's slice); all_gather: members × elements;
// reduce_scatter and all_to_all: members × the receiver's members × elements; broadcast: elements.
std::shared_ptr<Buffer> SpanGroup::contribution(const SpanOperation& op, int process, std::int64_t& bytes) const {
  const std::int64_t n = op.call.count * width_of(op);
  const Ints& theirs = members_[static_cast<std::size_t>(process)];
  const auto own = static_cast<std::int64_t>(locals());
  std::shared_ptr<Buffer> buffer;
  std::byte* to = nullptr;
  const auto reserve = [&](std::int64_t size) {
    bytes = size;
    buffer = exchange_.buffer(static_cast<std::size_t>(size));
    to = static_cast<std::byte*>(buffer->data());
  };
  const auto append = [&](const std::byte* from, std::int64_t size) {
    copy_bytes(from, to, size);
    to += size;
  };
  switch (op.call.kind) {
    case CallKind::all_reduce: {
      const Way way = way_of(op.call);
      if (way == Way::stretches) return nullptr;
      const auto [begin, end] =
          way == Way::slices ? slice(op.call.count, process) : std::pair(std::int64_t{0}, op.call.count);
      reserve(own * (end - begin) * width_of(op));
      for (const std::byte* in : op.in) append(in + begin * width_of(op), (end - begin) * width_of(op));
      return buffer;
    }
    case CallKind::all_gather:
      reserve(own * n);
      for (const std::byte* in : op.in) append(in, n);
      return buffer;
    case CallKind::reduce_scatter:
      if (way_of(op.call) == Way::stretches) return nullptr;
      [[fallthrough]];
    case CallKind::all_to_all:
      reserve(own * static_cast<std::int64_t>(theirs.size()) * n);
      for (const std::byte* in : op.in) {
        for (int m : theirs) append(in + m * n, n);
      }
      return buffer;
    case CallKind::broadcast:
      if (!is_local(op.call.root)) return nullptr;
      reserve(n);
      append(op.in[static_cast<std::size_t>(local_index_[op.call.root])], n);
      return buffer;
    case CallKind::split: {
      std::string text;
      for (const SpanSplit& choice : op.split) {
        const std::int64_t numbers[] = {choice.color, choice.key, static_cast<std::int64_t>(choice.candidate),
                                        static_cast<std::int64_t>(choice.name.size())};
        text.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
        text += choice.name;
      }
      reserve(static_cast<std::int64_t>(text.size()));
      append(reinterpret_cast<const std::byte*>(text.data()), bytes);
      return buffer;
    }
    case CallKind::barrier:
      return nullptr;
  }
  return nullptr;
}

void SpanGroup::combine(SpanOperation& op) {
  switch (op.call.kind) {
    case CallKind::all_reduce:
      if (way_of(op.call) == Way::exchange) combine_all_reduce(op);
      if (way_of(op.call) == Way::slices) combine_slice(op);
      return;
    case CallKind::reduce_scatter:
      if (way_of(op.call) == Way::exchange) combine_reduce_scatter(op);
      return;
    case CallKind::all_gather:
      return combine_gather(op);
    case CallKind::all_to_all:
      return combine_all_to_all(op);
    case CallKind::broadcast:
      return combine_broadcast(op);
    case CallKind::split:
      return form_groups(op);
    case CallKind::barrier:
      return;
  }
}

// By member: a local one's input, `local_offset` bytes on; another's place in its process's contribution, of which a
// member has `remote_stride` bytes.
std::vector<std::byte*> SpanGroup::inputs_of_all(const SpanOperation& op, std::int64_t local_offset,
                                                 std::int64_t remote_offset, std::int64_t remote_stride) const {
  std::vector<std::byte*> inputs(ranks_.size());
  for (std::size_t p = 0; p < members_.size(); ++p) {
    for (std::size_t i = 0; i < members_[p].size(); ++i) {
      const auto m = static_cast<std::size_t>(members_[p][i]);
      if (static_cast<int>(p) == here_) {
        inputs[m] = op.in[i] + local_offset;
      } else {
        inputs[m] = const_cast<std::byte*>(op.contributions[p].data()) + remote_offset +
                    static_cast<std::int64_t>(i) * remote_stride;
      }
    }
  }
  return inputs;
}

void SpanGroup::combine_all_reduce(SpanOperation& op) const {
  const auto inputs = inputs_of_all(op, 0, 0, op.call.count * width_of(op));
  if (op.call.count > 0) reduce(op.call.dtype, op.call.reduce, inputs, 0, op.out, 0, op.call.count);
}

void SpanGroup::combine_reduce_scatter(SpanOperation& op) const {
  const std::int64_t n = op.call.count * width_of(op);
  const auto own = static_cast<std::int64_t>(locals());
  for (std::int64_t j = 0; j < own && n > 0; ++j) {
    const int part = own_members()[static_cast<std::size_t>(j)];
    const auto inputs = inputs_of_all(op, part * n, j * n, own * n);
    reduce(op.call.dtype, op.call.reduce, inputs, 0, {&op.out[static_cast<std::size_t>(j)], 1}, 0, op.call.count);
  }
}

// Adds up this process's slice and sends it to the others, whose slices come back as chunks.
void SpanGroup::combine_slice(SpanOperation& op) {
  const auto [begin, end] = slice(op.call.count, here_);
  const std::int64_t bytes = (end - begin) * width_of(op);
  if (bytes == 0) return;
  const auto inputs = inputs_of_all(op, begin * width_of(op), 0, bytes);
  const auto sum = exchange_.buffer(static_cast<std::size_t>(bytes));
  auto* data = static_cast<std::byte*>(sum->data());
  reduce(op.call.dtype, op.call.reduce, inputs, 0, {&data, 1}, 0, end - begin);
  for (std::byte* out : op.out) copy_bytes(data, out + begin * width_of(op), bytes);
  for (int p = 0; p < processes(); ++p) {
    if (p == here_) continue;
    Header header = this->header(op, ParcelKind::result);
    header.offset = begin;
    header.bytes = bytes;
    exchange_.send(process_number_[p], header, data, sum);
  }
}

void SpanGroup::combine_gather(SpanOperation& op) const {
  const std::int64_t n = op.call.count * width_of(op);
  const auto inputs = inputs_of_all(op, 0, 0, n);
  for (std::byte* out : op.out) {
    for (int m = 0; m < size(); ++m) copy_bytes(inputs[static_cast<std::size_t>(m)], out + m * n, n);
  }
}

void SpanGroup::combine_all_to_all(SpanOperation& op) const {
  const std::int64_t n = op.call.count * width_of(op);
  const auto own = static_cast<std::int64_t>(locals());
  for (std::int64_t j = 0; j < own; ++j) {
    const auto inputs = inputs_of_all(op, own_members()[static_cast<std::size_t>(j)] * n, j * n, own * n);
    for (int m = 0; m < size(); ++m) {
      copy_bytes(inputs[static_cast<std::size_t>(m)], op.out[static_cast<std::size_t>(j)] + m * n, n);
    }
  }
}

void SpanGroup::combine_broadcast(SpanOperation& op) const {
  const int root = op.call.root;
  const std::byte* from = is_local(root) ? op.in[static_cast<std::size_t>(local_index_[root])]
                                         : op.contributions[static_cast<std::size_t>(process_of_member_[root])].data();
  for (std::byte* out : op.out) copy_bytes(from, out, op.call.count * width_of(op));
}

void SpanGroup::form_groups(SpanOperation& op) {
  std::vector<SpanSplit> all(ranks_.size());
  for (std::size_t p = 0; p < members_.size(); ++p) {
    const auto* at = reinterpret_cast<const char*>(op.contributions[p].data());
    for (std::size_t i = 0; i < members_[p].size(); ++i) {
      SpanSplit& member = all[static_cast<std::size_t>(members_[p][i])];
      if (static_cast<int>(p) == here_) {
        member = op.split[i];
        continue;
      }
      std::int64_t numbers[4];
      std::memcpy(numbers, at, sizeof(numbers));
      member.color = static_cast<int>(numbers[0]);
      member.key = static_cast<int>(numbers[1]);
      member.candidate = static_cast<std::uint64_t>(numbers[2]);
      member.name.assign(at + sizeof(numbers), static_cast<std::size_t>(numbers[3]));
      at += sizeof(numbers) + numbers[3];
    }
  }
  std::map<int, std::vector<std::pair<int, int>>> colors;  // color → (key, member)
  for (int m = 0; m < size(); ++m) {
    const SpanSplit& member = all[static_cast<std::size_t>(m)];
    if (member.color >= 0) colors[member.color].emplace_back(member.key, m);
  }
  for (auto& [color, chosen] : colors) {
    std::sort(chosen.begin(), chosen.end());
    Ints ranks;
    bool here = false;
    bool elsewhere = false;
    for (const auto& [key, m] : chosen) {
      ranks.push_back(world_rank(m));
      (is_local(m) ? here : elsewhere) = true;
    }
    if (!here) continue;
    const SpanSplit& first = all[static_cast<std::size_t>(chosen.front().second)];
    std::shared_ptr<Group> local;
    std::shared_ptr<SpanGroup> span;
    if (elsewhere) {
      span = std::make_shared<SpanGroup>(exchange_, world_, ranks, ranks_per_process_, first.candidate, first.name);
      exchange_.enroll(span);
    } else {
      local = std::make_shared<Group>(world_, ranks, first.name);
    }
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (!is_local(chosen[i].second)) continue;
      SpanSplit& member = op.split[static_cast<std::size_t>(local_index_[chosen[i].second])];
      member.local = local;
      member.span = span;
      member.rank = static_cast<int>(i);
    }
  }
}

}  // namespace cuboid::detail
