// Typed look-ups in an object of JSON that a user hands in. Private to formats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cuboid/core/text.h"

#include "json_text.h"

namespace cuboid {

/// null, false, 0, "", [] and {}: a feature that is off.
inline bool is_off(const Json& value) {
  return value.is_null() || value == false || value == 0 || value == "" || (value.is_structured() && value.empty());
}

/// Typed look-ups in one JSON object. A look-up marks its key as understood; faults are collected; a faulty or missing
/// value reads as its default.
class JsonSection {
 public:
  JsonSection(const Json& object, std::string where, Problems& problems)
      : object_(object), where_(std::move(where)), problems_(problems) {}

  bool has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }
  /// True also for null.
  bool given(const std::string& key) const { return object_.contains(key); }
  /// The value, or null if the key is absent.
  const Json& value(const std::string& key) {
    static const Json kNull;
    used_.insert(key);
    return object_.contains(key) ? object_[key] : kNull;
  }
  void fault(const std::string& reason) { problems_.add(where_ + ": " + reason); }
  void fault(const std::string& key, const std::string& reason) {
    fault(key + " " + excerpt(value(key)) + ": " + reason);
  }

  /// A whole number in [1, most]. Without a default the key is required.
  std::int64_t natural(const std::string& key, std::int64_t most, std::optional<std::int64_t> fallback = {}) {
    const Json& found = value(key);
    if (found.is_null()) {
      if (!fallback) fault(key + " is missing");
      return fallback.value_or(0);
    }
    // Older writers stored counts as 4096.0.
    const double number = found.is_number() ? found.get<double>() : 0;
    if (!(number >= 1 && number <= static_cast<double>(most) && number == std::floor(number))) {
      fault(key, fmt::format("must be a whole number from 1 to {}", most));
      return 0;
    }
    return static_cast<std::int64_t>(number);
  }

  /// A finite number with least < x, or least <= x if `closed`. Without a default the key is required.
  double real(const std::string& key, double least, bool closed, std::optional<double> fallback = {}) {
    const Json& found = value(key);
    if (found.is_null()) {
      if (!fallback) fault(key + " is missing");
      return fallback.value_or(1);
    }
    const double number = found.is_number() ? found.get<double>() : std::nan("");
    if (!std::isfinite(number) || !(closed ? number >= least : number > least)) {
      fault(key, fmt::format("must be a number {} {}", closed ? "of at least" : "above", least));
      return fallback.value_or(1);
    }
    return number;
  }

  bool boolean(const std::string& key, bool fallback) {
    const Json& found = value(key);
    if (found.is_null()) return fallback;
    if (found.is_boolean()) return found.get<bool>();
    fault(key, "must be true or false, is " + kind_of(found));
    return fallback;
  }

  /// A key of which only some values are implemented; absent or null means the first of them.
  void only(const std::string& key, const std::vector<Json>& allowed) {
    const Json& found = value(key);
    if (found.is_null() || std::find(allowed.begin(), allowed.end(), found) != allowed.end()) return;
    std::vector<std::string> names;
    for (const Json& item : allowed) names.push_back(excerpt(item));
    fault(key, "not supported; must be " + join(names, " or "));
  }

  /// Refuses what nobody looked up, unless it is off or harmless.
  void refuse_unknown(const std::set<std::string, std::less<>>& harmless) {
    std::vector<std::string> unknown;
    for (const auto& [key, item] : object_.items()) {
      const bool known = used_.count(key) != 0 || harmless.count(key) != 0 || key.starts_with("_");
      if (!known && !is_off(item)) unknown.push_back(key + " = " + excerpt(item));
    }
    if (!unknown.empty()) fault("keys that are not understood and may change the model: " + join(unknown));
  }

 private:
  const Json& object_;
  std::string where_;
  Problems& problems_;
  std::set<std::string> used_;
};

}  // namespace cuboid
