#include "cuboid/value/traffic.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

namespace cuboid {
namespace {

constexpr std::array<const char*, kCommOperations> kNames = {"all_reduce", "reduce_scatter", "all_gather",
                                                             "all_to_all", "broadcast",      "send"};

std::optional<double> positive(std::string_view text) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || !(value > 0) || std::isinf(value)) return {};
  return value;
}

}  // namespace

const char* name_of(CommOperation operation) {
  return kNames[static_cast<std::size_t>(operation)];
}

std::optional<CommOperation> comm_operation(const std::string& name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end()) return {};
  return static_cast<CommOperation>(found - kNames.begin());
}

double bus_factor(CommOperation operation, int n) {
  const double others = static_cast<double>(n - 1) / n;
  switch (operation) {
    case CommOperation::all_reduce:
      return 2 * others;
    case CommOperation::reduce_scatter:
    case CommOperation::all_gather:
    case CommOperation::all_to_all:
      return others;
    case CommOperation::broadcast:
    case CommOperation::send:
      return 1;
  }
  return 1;
}

Traffic parse_traffic(const std::string& text) {
  Traffic traffic;
  Problems problems;
  for (const std::string_view item : split(text, ',')) {
    const auto equals = item.find('=');
    const auto axis =
        std::find_if(kAxes.begin(), kAxes.end(), [&](Axis a) { return item.substr(0, equals) == name_of(a); });
    const auto parts = split(equals == std::string::npos ? "" : item.substr(equals + 1), ':');
    const auto operation = comm_operation(std::string(parts.front()));
    const auto bytes = parts.size() > 1 ? positive(parts[1]) : std::nullopt;
    const auto count = parts.size() > 2 ? positive(parts[2]) : std::optional<double>(1);
    if (axis == kAxes.end() || !operation || !bytes || !count || parts.size() > 3) {
      problems.add(
          fmt::format("'{}' is not AXIS=OPERATION:BYTES or AXIS=OPERATION:BYTES:COUNT; axes are tp, cp, ep, dp, "
                      "pp, operations {}",
                      item, join({kNames.begin(), kNames.end()})));
      continue;
    }
    traffic.push_back({*axis, *operation, *bytes, *count});
  }
  problems.throw_if_any();
  return traffic;
}

std::string to_text(const Traffic& traffic) {
  std::vector<std::string> items;
  for (const auto& t : traffic) {
    items.push_back(fmt::format("{}={}:{}:{}", name_of(t.axis), name_of(t.operation), t.bytes, t.count));
  }
  return join(items, ",");
}

}  // namespace cuboid
