#include "launch/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>

#include <boost/program_options.hpp>
#include <fmt/format.h>

#include "cuboid/core/text.h"
#include "cuboid/core/units.h"

namespace cuboid::launch {
namespace po = boost::program_options;
namespace {

constexpr unsigned kHelpColumns = 110;
constexpr unsigned kTextColumns = 70;

// A flag starts a slice of the arguments; "-1" and "-.5" are values.
bool starts_flag(const std::string& word) {
  if (word.size() < 2 || word[0] != '-') return false;
  return word[1] != '.' && (word[1] < '0' || word[1] > '9');
}

// "; did you mean --tp?", or nothing where no flag is near.
std::string guess_of(const std::string& flag, const std::vector<std::string>& names) {
  const std::string word = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  const std::string near = nearest(word, names);
  return edit_distance(word, near) <= 1 + word.size() / 3 ? "; did you mean --" + near + "?" : "";
}

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorKind::request, why);
}

}  // namespace

Flags::Flags(std::string usage, std::string summary) : usage_(std::move(usage)), summary_(std::move(summary)) {
  sections_.push_back("Help");
  add("help", "", "", "print this text and exit", [](const Values&) {});
}

void Flags::section(const std::string& title) {
  sections_.push_back(title);
}

void Flags::add(const std::string& name, const std::string& value_name, const std::string& fallback,
                const std::string& help, Setter set, bool many) {
  CUBOID_CHECK(find(name) == nullptr, "flag --" + name + " is declared twice");
  rows_.push_back({name, value_name, fallback, help, std::move(set), many, sections_.size() - 1});
}

void Flags::bytes(const std::string& name, std::int64_t& target, const std::string& help, const std::string& fallback) {
  // Shown with a unit only where that says the very number.
  const std::string human = human_bytes(static_cast<std::uint64_t>(target));
  const bool exact = target > 0 && parse_bytes(human) == target;
  add(name, "BYTES",
      !fallback.empty() ? fallback
      : exact           ? human
                        : std::to_string(target),
      help, [&target](const Values& v) { target = parse_bytes(v.front()); });
}

void Flags::real(const std::string& name, double& target, const std::string& help, const std::string& value_name) {
  add(name, value_name, fmt::format("{}", target), help,
      [&target](const Values& v) { target = parse_real(v.front()); });
}

void Flags::text(const std::string& name, const std::string& value_name, std::string& target, const std::string& help) {
  add(name, value_name, target, help, [&target](const Values& v) { target = v.front(); });
}

void Flags::toggle(const std::string& name, bool& target, const std::string& help) {
  add(name, "", "", help, [&target](const Values& v) { target = one_of(v.front(), {"false", "true"}) == 1; });
}

void Flags::fixed(const std::string& name, const Values& allowed, const std::string& help, const std::string& why) {
  add(name, join(allowed, "|"), allowed.front(), help, [allowed, why](const Values& v) {
    if (std::find(allowed.begin(), allowed.end(), v.front()) != allowed.end()) return;
    refuse(why + "; use " + join(allowed, " or "));
  });
}

void Flags::parse(const std::vector<std::string>& arguments, Problems& problems) {
  Values slice;
  for (const auto& word : arguments) {
    if (starts_flag(word) && !slice.empty()) {
      parse_slice(slice, problems);
      slice.clear();
    }
    slice.push_back(word == "-h" ? "--help" : word);
  }
  if (!slice.empty()) parse_slice(slice, problems);
}

// One flag with its values goes through Boost at a time: its parser stops at the first fault, and all are wanted.
void Flags::parse_slice(const Values& slice, Problems& problems) {
  const std::string word = slice.front();
  if (!starts_flag(word)) {
    for (const auto& stray : slice) problems.add(fmt::format("'{}': no flag takes this value", stray));
    return;
  }
  const std::string name = word.substr(0, word.find('='));
  const Row* row = name.starts_with("--") ? find(name.substr(2)) : nullptr;
  if (row == nullptr) {
    problems.add(fmt::format("{}: unknown flag{}", name, guess_of(name, names())));
    return;
  }
  const auto before = std::find_if(given_.begin(), given_.end(), [&](const auto& g) { return g.first == row; });
  if (before != given_.end() && !row->many) {
    problems.add(name + ": given twice");
    return;
  }
  po::options_description table;
  if (row->is_toggle()) {
    table.add_options()(row->name.c_str(), po::value<std::string>()->implicit_value("true"));
  } else if (row->many) {
    table.add_options()(row->name.c_str(), po::value<Values>()->multitoken());
  } else {
    table.add_options()(row->name.c_str(), po::value<std::string>());
  }
  const int style = po::command_line_style::allow_long | po::command_line_style::long_allow_adjacent |
                    po::command_line_style::long_allow_next;
  try {
    for (const auto& option : po::command_line_parser(slice).options(table).style(style).run().options) {
      if (option.position_key >= 0) {
        problems.add(fmt::format("'{}': no flag takes this value ({} {})", option.value.front(), name,
                                 row->is_toggle() ? "takes none" : "takes one"));
      } else if (before != given_.end()) {
        before->second.insert(before->second.end(), option.value.begin(), option.value.end());
      } else {
        given_.emplace_back(row, option.value.empty() ? Values{"true"} : option.value);
      }
    }
  } catch (const po::error&) {
    problems.add(fmt::format("{}: needs a value ({})", name, row->is_toggle() ? "true or false" : row->value_name));
  }
  if (row->name == "help") help_wanted_ = true;
}

void Flags::apply(Problems& problems) const {
  for (const auto& [row, values] : given_) {
    try {
      row->set(values);
    } catch (const Error& error) {
      problems.add(fmt::format("--{} {}: {}", row->name, join(values, " "), error.what()));
    }
  }
}

std::optional<std::string> Flags::value_of(const std::string& name) const {
  for (const auto& [row, values] : given_) {
    if (row->name == name) return values.front();
  }
  return std::nullopt;
}

bool Flags::print_help_if_wanted() const {
  if (help_wanted_) fmt::print("{}", help());
  return help_wanted_;
}

bool Flags::read(const std::vector<std::string>& arguments, Problems& problems) {
  parse(arguments, problems);
  if (print_help_if_wanted()) return false;
  apply(problems);
  return true;
}

std::string Flags::help() const {
  std::ostringstream out;
  out << "Usage: " << usage_ << "\n\n" << summary_ << "\n";
  // The section that every command shares, --help, comes last.
  for (std::size_t i = 1; i <= sections_.size(); ++i) {
    const std::size_t section = i % sections_.size();
    po::options_description table(sections_[section], kHelpColumns, kTextColumns);
    for (const auto& row : rows_) {
      if (row.section != section) continue;
      if (row.is_toggle()) {
        table.add_options()(row.name.c_str(), row.help.c_str());
        continue;
      }
      auto* value = po::value<std::string>()->value_name(row.value_name);  // the table takes it over
      if (!row.fallback.empty()) value->default_value(row.fallback, row.fallback);
      table.add_options()(row.name.c_str(), value, row.help.c_str());
    }
    out << "\n" << table;
  }
  return out.str();
}

const Flags::Row* Flags::find(const std::string& name) const {
  const auto row = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.name == name; });
  return row == rows_.end() ? nullptr : &*row;
}

Flags::Values Flags::names() const {
  Values all;
  for (const auto& row : rows_) all.push_back(row.name);
  return all;
}

std::int64_t Flags::parse_whole(const std::string& text, std::int64_t least, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault == std::errc::invalid_argument || end != text.data() + text.size()) refuse("not a whole number");
  const bool overflow = fault == std::errc::result_out_of_range;
  const bool negative = text.starts_with('-');
  if (value < least || (overflow && negative)) refuse(fmt::format("must be at least {}", least));
  if (value > most || overflow) refuse(fmt::format("must be at most {}", most));
  return value;
}

double Flags::parse_real(const std::string& text) {
  double value = 0;
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (fault != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) refuse("not a finite number");
  return value;
}

std::size_t Flags::one_of(const std::string& word, const Values& words) {
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) refuse("not one of " + join(words, ", "));
  return static_cast<std::size_t>(found - words.begin());
}

}  // namespace cuboid::launch
