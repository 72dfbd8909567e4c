#include "operation.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "reduce.h"

namespace cuboid::detail {
namespace {

// Large enough that claiming a chunk costs nothing, small enough that two members share a message of 64 KiB.
constexpr std::int64_t kChunkBytes = 32 << 10;
// Bytes read or written (about 5 us) up to which the last to arrive does it all on the spot.
constexpr std::int64_t kSmallBytes = 128 << 10;

// How many separately numbered parts of `count` elements an operation has.
std::int64_t parts_of(CallKind kind, std::int64_t size) {
  switch (kind) {
    case CallKind::all_reduce:
    case CallKind::broadcast:
      return 1;
    case CallKind::reduce_scatter:
    case CallKind::all_gather:
      return size;
    case CallKind::all_to_all:
      return size * size;
    case CallKind::barrier:
    case CallKind::split:
      return 0;
  }
  return 0;
}

void copy_bytes(const std::byte* from, std::byte* to, std::int64_t bytes) {
  if (from != to) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

}  // namespace

std::string to_string(const Call& call) {
  const auto sized = [&](const char* name, const char* each) {
    return fmt::format("{} of {} {}{}{}", name, call.count, name_of(call.dtype), each, call.on_host ? "" : " on a GPU");
  };
  const bool sum = call.reduce == ReduceOp::sum;
  switch (call.kind) {
    case CallKind::all_reduce:
      return sized(sum ? "all_reduce (sum)" : "all_reduce (max)", "");
    case CallKind::reduce_scatter:
      return sized(sum ? "reduce_scatter (sum)" : "reduce_scatter (max)", " a rank");
    case CallKind::all_gather:
      return sized("all_gather", " a rank");
    case CallKind::all_to_all:
      return sized("all_to_all", " a pair of ranks");
    case CallKind::broadcast:
      return sized("broadcast", fmt::format(" from member {}", call.root).c_str());
    case CallKind::barrier:
      return "barrier";
    case CallKind::split:
      return "split";
  }
  return "?";
}

Operation::Operation(const Call& asked, std::uint64_t number, int size)
    : call(asked),
      sequence(number),
      in(static_cast<std::size_t>(size)),
      out(static_cast<std::size_t>(size)),
      arrived(static_cast<std::size_t>(size)),
      ready(static_cast<std::size_t>(size)),
      held(static_cast<std::size_t>(size)),
      elements_per_chunk_(kChunkBytes / static_cast<std::int64_t>(size_of(asked.dtype))),
      chunks_per_part_((asked.count + elements_per_chunk_ - 1) / elements_per_chunk_),
      chunks_(chunks_per_part_ * parts_of(asked.kind, size)) {
  if (asked.kind == CallKind::split) split.resize(static_cast<std::size_t>(size));
}

bool Operation::small() const {
  const auto size = static_cast<std::int64_t>(in.size());
  // Parts that one member reads or writes, times members.
  const std::int64_t touched =
      2 * size * (call.kind == CallKind::all_reduce || call.kind == CallKind::broadcast ? 1 : size);
  return call.count * static_cast<std::int64_t>(size_of(call.dtype)) * touched <= kSmallBytes || chunks_ == 0;
}

void Operation::help() {
  if (chunks_ == 0) {
    phase.store(complete);
    return;
  }
  std::int64_t chunk;
  while ((chunk = next_.fetch_add(1, std::memory_order_relaxed)) < chunks_) {
    run_chunk(chunk);
    if (done_.fetch_add(1, std::memory_order_acq_rel) + 1 == chunks_) phase.store(complete);
  }
}

void Operation::run_chunk(std::int64_t chunk) const {
  const auto size = static_cast<std::int64_t>(in.size());
  const std::int64_t part = chunk / chunks_per_part_;
  const std::int64_t begin = chunk % chunks_per_part_ * elements_per_chunk_;
  const std::int64_t count = std::min(elements_per_chunk_, call.count - begin);
  const auto width = static_cast<std::int64_t>(size_of(call.dtype));
  // Element `begin` of part p in a member's buffer of parts.
  const auto at = [&](std::byte* base, std::int64_t p) { return base + (p * call.count + begin) * width; };
  switch (call.kind) {
    case CallKind::all_reduce:
      return reduce(call.dtype, call.reduce, in, begin, out, begin, count);
    case CallKind::reduce_scatter: {
      const std::span<std::byte* const> mine(&out[static_cast<std::size_t>(part)], 1);
      return reduce(call.dtype, call.reduce, in, part * call.count + begin, mine, begin, count);
    }
    case CallKind::all_gather: {
      const std::byte* from = at(in[static_cast<std::size_t>(part)], 0);
      for (std::byte* base : out) copy_bytes(from, at(base, part), count * width);
      return;
    }
    case CallKind::all_to_all: {
      const std::int64_t from = part / size;
      const std::int64_t to = part % size;
      return copy_bytes(at(in[static_cast<std::size_t>(from)], to), at(out[static_cast<std::size_t>(to)], from),
                        count * width);
    }
    case CallKind::broadcast: {
      const std::byte* from = at(in[static_cast<std::size_t>(call.root)], 0);
      for (std::byte* base : out) copy_bytes(from, at(base, 0), count * width);
      return;
    }
    case CallKind::barrier:
    case CallKind::split:
      return;  // no chunks
  }
}

}  // namespace cuboid::detail
