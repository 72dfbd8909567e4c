#include "cuboid/value/schedule_csv.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include <fmt/format.h>

#include "cuboid/core/error.h"
#include "cuboid/core/text.h"

namespace cuboid {
namespace {

struct Word {
  std::string_view text;
  ActionKind kind;
  bool with_micro_batch;
};

constexpr Word kWords[] = {
    {"F", ActionKind::forward, true},
    {"B", ActionKind::backward, true},
    {"I", ActionKind::input_gradient, true},
    {"W", ActionKind::weight_gradient, true},
    {"SEND_F", ActionKind::send_forward, true},
    {"RECV_F", ActionKind::recv_forward, true},
    {"SEND_B", ActionKind::send_backward, true},
    {"RECV_B", ActionKind::recv_backward, true},
    {"UNSHARD", ActionKind::unshard, false},
    {"RESHARD", ActionKind::reshard, false},
    {"REDUCE_GRAD", ActionKind::reduce_gradient, false},
};
constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kBlanks = " \t";
constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::size_t kMaxReasons = 20;

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

class Reader {
 public:
  Reader(const std::string& name, bool of_2024) : name_(name), of_2024_(of_2024) {
    out_.schedule.name = name;
    if (of_2024) {
      out_.notes.push_back(name + ": read as the dialect of 2024: B is the input gradient, BW the whole backward");
    }
  }

  CsvSchedule read(std::string_view text) {
    std::vector<std::string_view> lines = split(text, '\n');
    for (auto& line : lines) {
      if (line.ends_with('\r')) line.remove_suffix(1);
    }
    while (!lines.empty() && trim(lines.back()).empty()) lines.pop_back();
    for (const auto line : lines) read_row(line);
    finish();
    if (refused_ > reasons_.size()) reasons_.push_back(fmt::format("and {} more", refused_ - reasons_.size()));
    Problems problems;
    for (const auto& reason : reasons_) problems.add(fmt::format("{}: {}", name_, reason));
    problems.throw_if_any();
    return std::move(out_);
  }

 private:
  void refuse(const std::string& reason) {
    if (++refused_ <= kMaxReasons) reasons_.push_back(reason);
  }

  void refuse_cell(std::string_view cell, const std::string& reason) {
    refuse(fmt::format("row {}, cell {}: '{}' {}", row_, cell_, cell, reason));
  }

  void read_row(std::string_view line) {
    auto& actions = out_.schedule.rows.emplace_back();
    ++row_;
    cell_ = 0;
    for (const auto cell : split(line, ',')) {
      ++cell_;
      const auto text = trim(cell);
      if (text.empty()) {
        if (first_blank_.empty()) first_blank_ = fmt::format("row {}, cell {}", row_, cell_);
      } else if (text.front() == '(') {
        read_overlap(text, actions);
      } else if (const auto action = read_action(text)) {
        actions.push_back(*action);
      }
    }
  }

  // (0F7;7B3)OVERLAP_F_B
  void read_overlap(std::string_view cell, std::vector<Action>& actions) {
    const auto close = cell.find(')');
    const auto parts = split(cell.substr(1, close == std::string_view::npos ? close : close - 1), ';');
    if (close == std::string_view::npos || cell.substr(close + 1) != kOverlap || parts.size() != 2) {
      return refuse_cell(cell, "is no overlap of two actions, as (0F7;7B3)OVERLAP_F_B");
    }
    auto first = read_action(parts[0]);
    const auto second = read_action(parts[1]);
    if (!first || !second) return;
    if (first->kind != ActionKind::forward || !makes_input_gradient(second->kind)) {
      return refuse_cell(cell, "overlaps other actions than an F and a B or I, in this order");
    }
    first->overlapped = true;
    actions.push_back(*first);
    actions.push_back(*second);
  }

  // stage, action word, micro-batch; a faulty cell is refused and yields nothing.
  std::optional<Action> read_action(std::string_view cell) {
    const auto letters = std::min(cell.find_first_not_of(kDigits), cell.size());
    const auto digits = std::min(cell.find_first_of(kDigits, letters), cell.size());
    const auto word = cell.substr(letters, digits - letters);
    const auto number = cell.substr(digits);
    const auto known =
        std::find_if(std::begin(kWords), std::end(kWords), [&](const Word& w) { return w.text == word; });
    const bool whole = of_2024_ && word == "BW";
    const auto fail = [&](const std::string& reason) {
      refuse_cell(cell, reason);
      return std::nullopt;
    };
    if (letters == 0) return fail("has no stage in front; a cell is stage, action, micro-batch, as 0F0 or 1RECV_B3");
    if (known == std::end(kWords) && !whole) {
      return fail(
          "has no known action; the actions are F, B, I, W, SEND_F, RECV_F, SEND_B, RECV_B, UNSHARD, RESHARD, "
          "REDUCE_GRAD and (..;..)OVERLAP_F_B");
    }
    const bool with_micro_batch = whole || known->with_micro_batch;
    if (number.find_first_not_of(kDigits) != std::string_view::npos) return fail("has trailing characters");
    if (with_micro_batch && number.empty()) return fail("has no micro-batch");
    if (!with_micro_batch && !number.empty()) return fail("has a micro-batch, where there is none");

    Action action{whole ? ActionKind::backward : known->kind, 0, -1};
    if (of_2024_ && action.kind == ActionKind::input_gradient) {
      return fail("stands in a file of the 2024 dialect (it has BW), where the input gradient is B");
    }
    if (of_2024_ && word == "B") action.kind = ActionKind::input_gradient;
    if (!to_int(cell.substr(0, letters), action.stage) || !(number.empty() || to_int(number, action.micro_batch))) {
      return fail("has a number that is too large");
    }
    compute_only_ &= computes(action.kind);
    if (computes(action.kind)) {
      out_.schedule.stages = std::max(out_.schedule.stages, action.stage + 1);
      out_.schedule.micro_batches = std::max(out_.schedule.micro_batches, action.micro_batch + 1);
    }
    return action;
  }

  static bool to_int(std::string_view text, int& value) {
    const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
    return result.ec == std::errc() && value < 1'000'000'000;
  }

  void finish() {
    if (!compute_only_ && !first_blank_.empty()) {
      refuse(first_blank_ + " is blank: only files without transfers have idle cells");
    }
    if (refused_ == 0 && out_.schedule.stages == 0) refuse("has no F, B, I or W");
  }

  const std::string& name_;
  bool of_2024_;
  CsvSchedule out_;
  std::vector<std::string> reasons_;
  std::size_t refused_ = 0;
  int row_ = 0;
  int cell_ = 0;
  bool compute_only_ = true;
  std::string first_blank_;
};

}  // namespace

CsvSchedule parse_schedule_csv(std::string_view text, const std::string& name, CsvDialect dialect) {
  const bool says_bw = text.find("BW") != std::string_view::npos;
  const bool of_2024 = dialect == CsvDialect::of_2024 || (dialect == CsvDialect::automatic && says_bw);
  return Reader(name, of_2024).read(text);
}

CsvSchedule read_schedule_csv(const std::string& path, CsvDialect dialect) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char block[1 << 16];
  while (file.good()) {  // read() turns an error of the stream buffer (a folder, say) into badbit
    file.read(block, sizeof block);
    text.append(block, static_cast<std::size_t>(file.gcount()));
  }
  if (!file.is_open() || file.bad()) {
    throw Error(ErrorKind::request, fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  }
  return parse_schedule_csv(text, path, dialect);
}

std::string to_csv(const Schedule& schedule) {
  std::string csv;
  for (const auto& row : schedule.rows) {
    bool first = true;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].kind == ActionKind::step) continue;
      if (!first) csv += ',';
      first = false;
      if (row[i].overlapped && i + 1 < row.size()) {
        csv += "(" + to_string(row[i]) + ";" + to_string(row[i + 1]) + ")OVERLAP_F_B";
        ++i;
      } else {
        csv += to_string(row[i]);
      }
    }
    csv += '\n';
  }
  return csv;
}

}  // namespace cuboid
