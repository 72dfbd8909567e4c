// Reads a table of a TOML file against a list of keys that a visitor names: wrong types and unknown keys are faults,
// kept by line. Private to formats.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

#include "toml_text.h"

namespace cuboid {

/// Faults by line, so that they are reported in the file's order.
using TomlFaults = std::multimap<std::uint32_t, std::string>;

/// Reads one table: a call a key, then refuse_unknown().
class TomlReader {
 public:
  TomlReader(const toml::table& table, std::string where, TomlFaults& faults)
      : table_(table), where_(std::move(where)), faults_(faults) {}

  template <typename Value>
  void operator()(const char* key, const char* /*meaning*/, Value& value) {
    keys_.emplace_back(key);
    if (const toml::node* node = table_.get(key); node != nullptr && !read(*node, value)) {
      fault(*node, fmt::format("{} = {}: must be {}", key, toml_excerpt(*node), kind(value)));
    }
  }

  /// The elements of an array of tables; none where the key is absent.
  std::vector<const toml::table*> tables(const char* key) {
    keys_.emplace_back(key);
    std::vector<const toml::table*> found;
    const toml::node* node = table_.get(key);
    if (node == nullptr) return found;
    const toml::array* array = node->as_array();
    if (array == nullptr ||
        !std::all_of(array->begin(), array->end(), [](const auto& item) { return item.is_table(); })) {
      fault(*node, fmt::format("{}: must be an array of tables", key));
      return found;
    }
    for (const toml::node& item : *array) found.push_back(item.as_table());
    return found;
  }

  /// One of `count` names.
  template <typename Enum>
  void choice(const char* key, Enum& value, int count) {
    std::string word;
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.emplace_back(name_of(static_cast<Enum>(i)));
    (*this)(key, "", word);
    const auto found = std::find(names.begin(), names.end(), word);
    if (found != names.end()) {
      value = static_cast<Enum>(found - names.begin());
    } else if (const toml::node* node = table_.get(key); node == nullptr || node->is_string()) {
      faults_.emplace(table_.source().begin.line,
                      fmt::format("{}{} = \"{}\": must be one of {}", where_, key, word, join(names)));
    }
  }

  void refuse_unknown() {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (std::find(keys_.begin(), keys_.end(), name) != keys_.end()) continue;
      faults_.emplace(key.source().begin.line,
                      fmt::format("{}unknown key {}; the nearest is {}", where_, name, nearest(name, keys_)));
    }
  }

 private:
  void fault(const toml::node& node, const std::string& reason) {
    faults_.emplace(node.source().begin.line, where_ + reason);
  }
  static const char* kind(const std::string&) { return "a string"; }
  static const char* kind(bool) { return "true or false"; }
  static const char* kind(double) { return "a finite number"; }
  static const char* kind(int) { return "a whole number of 32 bits"; }
  static const char* kind(std::int64_t) { return "a whole number"; }
  static const char* kind(const std::optional<int>&) { return "a whole number of 32 bits"; }
  static const char* kind(const std::vector<std::string>&) { return "an array of strings"; }

  static bool read(const toml::node& node, std::string& value) { return take(node.value_exact<std::string>(), value); }
  static bool read(const toml::node& node, bool& value) { return take(node.value_exact<bool>(), value); }
  static bool read(const toml::node& node, std::int64_t& value) { return take(whole(node), value); }
  static bool read(const toml::node& node, int& value) {
    const auto number = whole(node);
    return number && *number >= std::numeric_limits<int>::min() && *number <= std::numeric_limits<int>::max() &&
           take(number, value);
  }
  static bool read(const toml::node& node, double& value) {
    const auto number = node.is_integer() ? node.value<double>() : node.value_exact<double>();
    return number && std::isfinite(*number) && take(number, value);
  }
  static bool read(const toml::node& node, std::optional<int>& value) { return read(node, value.emplace()); }
  static bool read(const toml::node& node, std::vector<std::string>& values) {
    const toml::array* array = node.as_array();
    if (array == nullptr) return false;
    values.clear();
    return std::all_of(array->begin(), array->end(),
                       [&](const toml::node& item) { return read(item, values.emplace_back()); });
  }
  // Sizes may be written as 80e9.
  static std::optional<std::int64_t> whole(const toml::node& node) {
    if (const auto number = node.value_exact<std::int64_t>()) return number;
    const auto number = node.value_exact<double>();
    if (!number || std::floor(*number) != *number || std::abs(*number) > 9e15) return std::nullopt;
    return static_cast<std::int64_t>(*number);
  }
  template <typename From, typename To>
  static bool take(const std::optional<From>& from, To& to) {
    if (from) to = static_cast<To>(*from);
    return from.has_value();
  }

  const toml::table& table_;
  std::string where_;
  TomlFaults& faults_;
  std::vector<std::string> keys_;
};

}  // namespace cuboid
