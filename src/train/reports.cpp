#include "reports.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace cuboid {
namespace {

// One event as numbers, for the gather: step, kind, stage, micro-batch, begin, seconds.
constexpr std::int64_t kFields = 6;

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw Error(ErrorKind::failed, fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace

void check_writable(const std::string& path) {
  // Append, so that an existing file is not emptied by a request that is refused for other reasons.
  const std::ofstream file(path, std::ios::app);
  if (!file) {
    throw Error(ErrorKind::request, fmt::format("--dump-grads {}: cannot be written: {}", path, std::strerror(errno)));
  }
}

void write_norms(const std::string& path, const std::map<std::string, double>& norms) {
  write_text(path, nlohmann::json(norms).dump(1) + "\n");
}

std::vector<MemoryUse> gather_memory(const Device& device, Communicator& world, const MemoryUse& mine) {
  constexpr std::int64_t kNumbers = kCategoryCount + 1;
  const Device host = device.host();
  const Tensor own = host.empty({kNumbers}, DType::int64, Category::workspace);
  const Tensor all = host.empty({kNumbers * world.size()}, DType::int64, Category::workspace);
  std::copy(mine.bytes.begin(), mine.bytes.end(), own.data<std::int64_t>());
  own.data<std::int64_t>()[kCategoryCount] = mine.total;
  world.all_gather(own, all).wait();
  std::vector<MemoryUse> ranks(static_cast<std::size_t>(world.size()));
  const std::int64_t* numbers = all.data<std::int64_t>();
  for (MemoryUse& use : ranks) {
    std::copy(numbers, numbers + kCategoryCount, use.bytes.begin());
    use.total = numbers[kCategoryCount];
    numbers += kNumbers;
  }
  return ranks;
}

void Timeline::add(int step, std::chrono::steady_clock::time_point begin, const std::vector<Span>& spans) {
  if (!enabled_) return;
  const double start = std::chrono::duration<double>(begin.time_since_epoch()).count();
  for (const Span& span : spans) {
    events_.push_back({step, span.action, start + span.begin, span.end - span.begin});
  }
}

void Timeline::write(const std::string& path, Communicator& world) const {
  const Device device;
  const Tensor longest = device.zeros({1}, DType::int64, Category::workspace);
  *longest.data<std::int64_t>() = static_cast<std::int64_t>(events_.size());
  all_reduce_in_place(world, longest, ReduceOp::max);
  const std::int64_t rows = *longest.data<std::int64_t>();
  const Tensor mine = device.zeros({rows, kFields}, DType::float64, Category::workspace);
  const Tensor all = device.zeros({world.size() * rows, kFields}, DType::float64, Category::workspace);
  double* out = mine.data<double>();
  for (std::int64_t i = 0; i < rows; ++i, out += kFields) {
    if (i >= static_cast<std::int64_t>(events_.size())) {
      out[0] = -1;  // no event: rows of ranks differ in length
      continue;
    }
    const Event& e = events_[static_cast<std::size_t>(i)];
    const double fields[kFields] = {static_cast<double>(e.step),
                                    static_cast<double>(e.action.kind),
                                    static_cast<double>(e.action.stage),
                                    static_cast<double>(e.action.micro_batch),
                                    e.begin,
                                    e.seconds};
    std::copy(fields, fields + kFields, out);
  }
  world.all_gather(mine, all).wait();
  if (world.rank() != 0) return;

  double epoch = std::numeric_limits<double>::infinity();
  const double* in = all.data<double>();
  for (std::int64_t i = 0; i < world.size() * rows; ++i) {
    if (in[i * kFields] >= 0) epoch = std::min(epoch, in[i * kFields + 4]);
  }
  nlohmann::json events = nlohmann::json::array();
  events.push_back(
      {{"name", "process_name"}, {"ph", "M"}, {"pid", 0}, {"tid", 0}, {"args", {{"name", "cuboid train"}}}});
  for (int rank = 0; rank < world.size(); ++rank) {
    events.push_back({{"name", "thread_name"},
                      {"ph", "M"},
                      {"pid", 0},
                      {"tid", rank},
                      {"args", {{"name", fmt::format("rank {}", rank)}}}});
    events.push_back(
        {{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", 0}, {"tid", rank}, {"args", {{"sort_index", rank}}}});
    for (std::int64_t i = 0; i < rows; ++i) {
      const double* e = in + (rank * rows + i) * kFields;
      if (e[0] < 0) continue;
      const Action action{static_cast<ActionKind>(static_cast<int>(e[1])), static_cast<int>(e[2]),
                          static_cast<int>(e[3])};
      events.push_back({{"name", to_string(action)},
                        {"cat", computes(action.kind) ? "compute" : "communication"},
                        {"ph", "X"},
                        {"pid", 0},
                        {"tid", rank},
                        {"ts", (e[4] - epoch) * 1e6},
                        {"dur", e[5] * 1e6},
                        {"args", {{"step", e[0]}, {"stage", action.stage}, {"micro_batch", action.micro_batch}}}});
    }
  }
  write_text(path, nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump() + "\n");
}

}  // namespace cuboid
