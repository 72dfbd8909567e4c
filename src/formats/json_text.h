// JSON that users hand in: parsed with duplicate keys refused, which a map-building reader hides. Private to formats.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "cuboid/core/error.h"

namespace cuboid {

using Json = nlohmann::json;

/// Parses text; a fault of syntax (with its position) and every duplicate key are added to problems, prefixed by
/// source. Returns null where the syntax is wrong; of duplicates the last value counts for further checks.
Json parse_json(std::string_view text, const std::string& source, Problems& problems);

/// "a string", "an object": what a value is, for messages.
std::string kind_of(const Json& value);

/// The value as JSON text, cut at 60 characters; nested arrays and objects by their kind only.
std::string excerpt(const Json& value);

}  // namespace cuboid
