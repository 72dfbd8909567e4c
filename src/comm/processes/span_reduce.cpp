// Large reductions of groups on several hosts, or with several members a process. The chunks of a sum travel through
// the stretches of consecutive members in ascending order: each process adds its members to the partial sum that the
// one before sends. The result goes back through the processes (all_reduce) or to the owner of its part
// (reduce_scatter). A link carries each byte once in each direction at the same time, whatever the number of members a
// process; and the order of summation, so every bit, is that of one process. The price is a latency that grows with the
// number of processes, which chunks that follow each other hide in large messages.
#include <algorithm>
#include <cstring>

#include "../reduce.h"
#include "exchange.h"
#include "span_group.h"

namespace cuboid::detail {
namespace {

// Bytes of a chunk. Below the 64 KiB up to which Open MPI sends over TCP at once: larger messages ask first, and the
// answer would wait behind all chunks that go the other way, so that the two directions take turns.
constexpr std::int64_t kChunkBytes = 48 << 10;
// Bytes of one member's input up to which latency matters more: everybody gets everything in one step.
constexpr std::int64_t kSmallBytes = 16 << 10;

// Partial sums of bfloat16 stay in float until the end.
DType type_of_partial(DType dtype) {
  return dtype == DType::bfloat16 ? DType::float32 : dtype;
}

std::int64_t elements_a_chunk(const Call& call) {
  return kChunkBytes / static_cast<std::int64_t>(size_of(type_of_partial(call.dtype)));
}

std::int64_t chunks_in(const Call& call) {
  return (call.count + elements_a_chunk(call) - 1) / elements_a_chunk(call);
}

}  // namespace

SpanGroup::Way SpanGroup::way_of(const Call& call) const {
  const bool scatter = call.kind == CallKind::reduce_scatter;
  if (call.kind != CallKind::all_reduce && !scatter) return Way::exchange;
  const std::int64_t bytes = call.count * (scatter ? size() : 1) * static_cast<std::int64_t>(size_of(call.dtype));
  if (bytes <= kSmallBytes) return Way::exchange;
  if (in_stretches_) return Way::stretches;
  return scatter ? Way::exchange : Way::slices;
}

// Partial sums that this process adds to, and results that it takes.
std::int64_t SpanGroup::expected_chunks(const SpanOperation& op) const {
  const Way way = way_of(op.call);
  if (way == Way::exchange) return 0;
  if (way == Way::slices) {
    std::int64_t others = 0;
    for (int p = 0; p < processes(); ++p) {
      const auto [begin, end] = slice(op.call.count, p);
      if (p != here_ && begin < end) ++others;
    }
    return others;
  }
  const std::int64_t own_stretches =
      std::count_if(stretches_.begin(), stretches_.end(), [&](const Stretch& s) { return s.process == here_; });
  const bool scatter = op.call.kind == CallKind::reduce_scatter;
  const std::int64_t parts = scatter ? size() : 1;
  const std::int64_t results = scatter ? static_cast<std::int64_t>(locals()) : 1;
  return chunks_in(op.call) * (parts * own_stretches + results);
}

void SpanGroup::start_chunks(SpanOperation& op) {
  op.chunks = expected_chunks(op);
  if (way_of(op.call) != Way::stretches || stretches_.front().process != here_) return;
  const std::int64_t parts = op.call.kind == CallKind::reduce_scatter ? size() : 1;
  // Chunk by chunk over all parts, so that no part's owner waits for all others.
  for (std::int64_t offset = 0; offset < op.call.count; offset += elements_a_chunk(op.call)) {
    for (std::int64_t part = 0; part < parts; ++part) add_stretch(op, 0, part, offset, nullptr);
  }
}

void SpanGroup::take_chunk(SpanOperation& op, const Parcel& parcel) {
  const Header& header = parcel.header;
  if (header.kind == ParcelKind::partial) {
    return add_stretch(op, header.stage, header.part, header.offset, parcel.data());
  }
  if (way_of(op.call) == Way::stretches) {
    return pass_result(op, header.stage, header.part, header.offset, parcel.payload);
  }
  const auto width = static_cast<std::int64_t>(size_of(op.call.dtype));
  for (std::byte* out : op.out) {
    std::memcpy(out + header.offset * width, parcel.data(), static_cast<std::size_t>(header.bytes));
  }
  --op.chunks;
}

// Adds the members of stretch `stage` to a partial sum (null: there is none yet) and sends it on.
void SpanGroup::add_stretch(SpanOperation& op, int stage, std::int64_t part, std::int64_t offset,
                            const std::byte* partial) {
  const Stretch& stretch = stretches_[static_cast<std::size_t>(stage)];
  const bool last = stage + 1 == static_cast<int>(stretches_.size());
  const std::int64_t count = std::min(elements_a_chunk(op.call), op.call.count - offset);
  const DType dtype = op.call.dtype;
  const DType sum_type = type_of_partial(dtype);
  const auto width = static_cast<std::int64_t>(size_of(dtype));
  const auto bytes_of = [&](DType type) { return static_cast<std::size_t>(count) * size_of(type); };
  const bool widen = sum_type != dtype;
  std::vector<std::byte*> inputs;
  if (partial != nullptr) inputs.push_back(const_cast<std::byte*>(partial));
  std::vector<std::shared_ptr<Buffer>> widened;
  for (int m = stretch.first; m <= stretch.last; ++m) {
    std::byte* in = op.in[static_cast<std::size_t>(local_index_[m])] + (part * op.call.count + offset) * width;
    if (widen) {
      widened.push_back(exchange_.buffer(bytes_of(sum_type)));
      auto* to = static_cast<float*>(widened.back()->data());
      std::transform(reinterpret_cast<BFloat16*>(in), reinterpret_cast<BFloat16*>(in) + count, to,
                     [](BFloat16 x) { return static_cast<float>(x); });
      in = reinterpret_cast<std::byte*>(to);
    }
    inputs.push_back(in);
  }
  auto sum = exchange_.buffer(bytes_of(sum_type));
  auto* data = static_cast<std::byte*>(sum->data());
  reduce(sum_type, op.call.reduce, inputs, 0, {&data, 1}, 0, count);
  --op.chunks;
  if (!last) {
    Header header = this->header(op, ParcelKind::partial);
    header.stage = stage + 1;
    header.part = part;
    header.offset = offset;
    header.bytes = static_cast<std::int64_t>(bytes_of(sum_type));
    const int next = stretches_[static_cast<std::size_t>(stage) + 1].process;
    return exchange_.send(process_number_[static_cast<std::size_t>(next)], header, data, sum);
  }
  if (widen) {
    const auto rounded = exchange_.buffer(bytes_of(dtype));
    const auto* from = reinterpret_cast<const float*>(data);
    std::transform(from, from + count, static_cast<BFloat16*>(rounded->data()), [](float x) { return BFloat16(x); });
    sum = rounded;
  }
  pass_result(op, 0, part, offset, sum);
}

// Takes a chunk of the result, or sends it to where it belongs. `place`: of this process on the way back.
void SpanGroup::pass_result(SpanOperation& op, int place, std::int64_t part, std::int64_t offset,
                            const std::shared_ptr<Buffer>& chunk) {
  const auto width = static_cast<std::int64_t>(size_of(op.call.dtype));
  const std::int64_t bytes = std::min(elements_a_chunk(op.call), op.call.count - offset) * width;
  const auto* data = static_cast<const std::byte*>(chunk->data());
  Header header = this->header(op, ParcelKind::result);
  header.stage = place + 1;
  header.part = part;
  header.offset = offset;
  header.bytes = bytes;
  const auto take = [&](std::byte* out) { std::memcpy(out + offset * width, data, static_cast<std::size_t>(bytes)); };
  if (op.call.kind == CallKind::reduce_scatter) {
    const auto owner = static_cast<std::size_t>(part);
    if (!is_local(static_cast<int>(owner))) {
      return exchange_.send(process_number_[static_cast<std::size_t>(process_of_member_[owner])], header, data, chunk);
    }
    take(op.out[static_cast<std::size_t>(local_index_[owner])]);
  } else {
    for (std::byte* out : op.out) take(out);
    if (place + 1 < static_cast<int>(way_back_.size())) {
      const int next = way_back_[static_cast<std::size_t>(place) + 1];
      exchange_.send(process_number_[static_cast<std::size_t>(next)], header, data, chunk);
    }
  }
  --op.chunks;
}

}  // namespace cuboid::detail
