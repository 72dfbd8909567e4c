// What the TOML files have in common: strings as they are written, values as messages show them. Private to formats.
#pragma once

#include <string>

#include <toml++/toml.h>

namespace cuboid {

/// Parses TOML. @throws Error{request} naming source and line
toml::table parse_toml(const std::string& text, const std::string& source);

/// A TOML basic string.
std::string toml_string(const std::string& text);

/// The value for a message: "a table", "3", "\"text\"".
std::string toml_excerpt(const toml::node& node);

}  // namespace cuboid
