#include "toml_text.h"

#include <sstream>

#include <fmt/format.h>

#include "cuboid/core/error.h"

namespace cuboid {

toml::table parse_toml(const std::string& text, const std::string& source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    throw Error(ErrorKind::request, fmt::format("{}: line {}: not valid TOML: {}", source, error.source().begin.line,
                                                std::string(error.description())));
  }
}

std::string toml_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

std::string toml_excerpt(const toml::node& node) {
  if (node.is_table()) return "a table";
  if (node.is_array()) return "an array";
  if (const auto text = node.value_exact<std::string>()) return toml_string(*text);
  std::ostringstream out;
  node.visit([&](const auto& value) { out << value; });
  return out.str();
}

}  // namespace cuboid
