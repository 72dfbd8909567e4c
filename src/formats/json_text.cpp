#include "json_text.h"

#include <set>
#include <vector>

namespace cuboid {
namespace {

/// nlohmann's callback keeps the last of duplicate keys; this refuses them by name.
class DuplicateKeys {
 public:
  DuplicateKeys(const std::string& source, Problems& problems) : source_(source), problems_(problems) {}

  bool operator()(int /*depth*/, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
        open_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
        open_.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        if (!open_.back().insert(key).second) problems_.add(source_ + ": duplicate key " + key);
        break;
      }
      default:
        break;
    }
    return true;
  }

 private:
  const std::string& source_;
  Problems& problems_;
  std::vector<std::set<std::string>> open_;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& source, Problems& problems) {
  DuplicateKeys duplicates(source, problems);
  try {
    return Json::parse(text, std::ref(duplicates));
  } catch (const Json::exception& error) {
    std::string what = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: …": the tag says nothing to a user.
    if (const auto end = what.find("] "); end != std::string::npos) what = what.substr(end + 2);
    problems.add(source + ": not valid JSON: " + what);
    return nullptr;
  }
}

std::string kind_of(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

std::string excerpt(const Json& value) {
  // dump() recurses: a hostile depth must not reach it.
  for (const Json& item : value) {
    if (value.is_structured() && item.is_structured()) return kind_of(value);
  }
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace cuboid
