// Command line flags as rows of a table: name, value, help and where the value goes. One table parses, reports every
// fault at once, and prints the help with its defaults. Flags are tokenised first and stored second (parse, apply), so
// that a run file named by one of them can be read in between.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

namespace cuboid::launch {

class Flags {
 public:
  using Values = std::vector<std::string>;
  /// Stores the values given to a flag; throws Error{request} without the flag's name if they are wrong.
  using Setter = std::function<void(const Values&)>;

  /// @param usage "cuboid train --model M --data PATH… [flags]"  @param summary one sentence or two
  Flags(std::string usage, std::string summary);
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// Starts a titled group of the help text.
  void section(const std::string& title);

  /// The general row. `fallback`: the default as shown by --help; empty: none shown. `many`: one or more values.
  void add(const std::string& name, const std::string& value_name, const std::string& fallback, const std::string& help,
           Setter set, bool many = false);
  template <std::integral T>
  static constexpr std::int64_t kMost = std::in_range<std::int64_t>(std::numeric_limits<T>::max())
                                            ? static_cast<std::int64_t>(std::numeric_limits<T>::max())
                                            : std::numeric_limits<std::int64_t>::max();
  /// Whole numbers of any integer type, between limits; the help shows the target's present value as the default.
  template <std::integral T>
  void whole(const std::string& name, T& target, const std::string& help, std::int64_t least,
             std::int64_t most = kMost<T>) {
    add(name, "N", std::to_string(target), help,
        [&target, least, most](const Values& v) { target = static_cast<T>(parse_whole(v.front(), least, most)); });
  }
  /// A number of bytes, with or without a unit (parse_bytes). `fallback`: what the help shows for the default.
  void bytes(const std::string& name, std::int64_t& target, const std::string& help, const std::string& fallback = "");
  void real(const std::string& name, double& target, const std::string& help, const std::string& value_name = "X");
  void text(const std::string& name, const std::string& value_name, std::string& target, const std::string& help);
  /// On when named; `--name=false` switches off what a run file switched on.
  void toggle(const std::string& name, bool& target, const std::string& help);
  /// One of a list of words; the target's present value is the default shown.
  template <typename Enum>
  void choice(const std::string& name, Enum& target, const std::vector<std::pair<std::string, Enum>>& words,
              const std::string& help) {
    Values names;
    std::string fallback;
    for (const auto& [word, value] : words) {
      names.push_back(word);
      if (value == target) fallback = word;
    }
    add(name, join(names, "|"), fallback, help,
        [&target, words, names](const Values& v) { target = words[one_of(v.front(), names)].second; });
  }
  /// A flag of which an empty value means something; every other refuses it, as `--out "$FOLDER"` with no FOLDER.
  void may_be_empty(const std::string& name);
  /// A flag that today has fewer values than it will have: any other is refused with `why`.
  void fixed(const std::string& name, const Values& allowed, const std::string& help, const std::string& why);

  /// Splits the arguments into flags and values. Unknown flags (with the nearest known), missing and superfluous
  /// values, and repeated flags go to problems. Stores nothing yet.
  void parse(const std::vector<std::string>& arguments, Problems& problems);
  /// Stores every parsed value; wrong ones go to problems as "--flag value: why".
  void apply(Problems& problems) const;

  /// parse and apply, for commands that read nothing in between. False if the help was asked for: it has been printed,
  /// and nothing is to be done.
  bool read(const std::vector<std::string>& arguments, Problems& problems);
  /// The same for commands that parse by themselves: prints the help if it was asked for.
  bool print_help_if_wanted() const;

  bool help_wanted() const { return help_wanted_; }
  /// First value given to a flag, if it was given.
  std::optional<std::string> value_of(const std::string& name) const;
  /// Names of the flags given, in their order.
  Values given() const;
  std::string help() const;

  /// @throws Error{request}: not a whole number, or outside [least, most]
  static std::int64_t parse_whole(const std::string& text, std::int64_t least, std::int64_t most);
  /// @throws Error{request}: not a finite number
  static double parse_real(const std::string& text);
  /// Index of the word. @throws Error{request} listing the words
  static std::size_t one_of(const std::string& word, const Values& words);

 private:
  struct Row {
    std::string name, value_name, fallback, help;
    Setter set;
    bool many = false;
    std::size_t section = 0;
    bool may_be_empty = false;
    bool is_toggle() const { return value_name.empty(); }
  };
  void parse_slice(const Values& slice, Problems& problems);
  const Row* find(const std::string& name) const;
  Values names() const;

  std::string usage_, summary_;
  std::vector<std::string> sections_;
  std::vector<Row> rows_;
  std::vector<std::pair<const Row*, Values>> given_;
  bool help_wanted_ = false;
};

/// Columns that standard output has: what COLUMNS says, else those of its terminal; nothing for a file or a pipe.
std::optional<long> output_columns();

/// --json is short for --format json: another --format beside it contradicts it.
void check_json_or_format(const Flags& flags, bool json, Problems& problems);

}  // namespace cuboid::launch
