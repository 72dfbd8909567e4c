#include "launch/flags.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include <boost/program_options.hpp>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cuboid/core/text.h"
#include "cuboid/core/units.h"

namespace cuboid::launch {
namespace po = boost::program_options;
namespace {

constexpr long kMostColumns = 110;  // of the help; longer lines are hard to read
constexpr long kLeastColumns = 60;

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

// Words in lines of at most so many characters.
std::string wrapped(const std::string& text, std::size_t columns) {
  std::string lines;
  std::size_t width = 0;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto letters = static_cast<std::size_t>(
        std::count_if(word.begin(), word.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
    const bool fits = width + 1 + letters <= columns;
    if (width > 0) lines += fits ? ' ' : '\n';
    width = width > 0 && fits ? width + 1 + letters : letters;
    lines += word;
  }
  return lines + "\n";
}

// Boost's table ends wrapped lines in blanks.
std::string without_trailing_blanks(const std::string& text) {
  std::string trimmed;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    trimmed += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return trimmed;
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

void Flags::may_be_empty(const std::string& name) {
  for (Row& row : rows_) {
    if (row.name == name) row.may_be_empty = true;
  }
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
  const std::string allowed = row->is_toggle() ? "true or false" : row->value_name;
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
      } else if (!row->may_be_empty && std::find(option.value.begin(), option.value.end(), "") != option.value.end()) {
        problems.add(fmt::format("{}: the value is empty ({})", name, allowed));
      } else if (before != given_.end()) {
        before->second.insert(before->second.end(), option.value.begin(), option.value.end());
      } else {
        given_.emplace_back(row, option.value.empty() ? Values{"true"} : option.value);
      }
    }
  } catch (const po::error&) {
    problems.add(fmt::format("{}: needs a value ({})", name, allowed));
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

Flags::Values Flags::given() const {
  Values all;
  for (const auto& [row, values] : given_) all.push_back(row->name);
  return all;
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
  const auto columns =
      static_cast<unsigned>(std::clamp(output_columns().value_or(kMostColumns), kLeastColumns, kMostColumns));
  std::ostringstream out;
  out << "Usage: " << usage_ << "\n\n" << wrapped(summary_, columns);
  // The section that every command shares, --help, comes last.
  for (std::size_t i = 1; i <= sections_.size(); ++i) {
    const std::size_t section = i % sections_.size();
    po::options_description table(sections_[section], columns, columns - columns * 4 / 11);
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
  return without_trailing_blanks(out.str());
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

std::optional<long> output_columns() {
  if (const char* variable = std::getenv("COLUMNS"); variable != nullptr && std::atol(variable) > 0) {
    return std::atol(variable);
  }
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return std::nullopt;
}

void check_json_or_format(const Flags& flags, bool json, Problems& problems) {
  const auto format = flags.value_of("format");
  problems.add_if(json && format && *format != "json",
                  fmt::format("--format {}: --json asks for another; leave one of them out", format.value_or("")));
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
