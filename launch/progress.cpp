#include "launch/progress.h"

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cuboid/core/log.h"
#include "cuboid/core/units.h"

namespace cuboid::launch {
namespace {

constexpr int kLongestBar = 48;
constexpr int kShortestBar = 8;

std::string repeat(std::string_view text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// What is not a number may carry a sign, which says nothing.
std::string loss_text(double loss, int digits) {
  return std::isnan(loss) ? "nan" : fmt::format("{:.{}f}", loss, digits);
}

std::string percent(double fraction) {
  return fmt::format("{:.0f} %", 100 * fraction);
}

// The bar itself, `cells` wide.
std::string bar(double done, int cells, const TerminalStyle& style) {
  const char* full = style.unicode ? "━" : "=";
  const char* rest = style.unicode ? "─" : "-";
  const int filled = std::clamp(static_cast<int>(done * cells + 0.5), 0, cells);
  if (!style.colour) return repeat(full, filled) + repeat(rest, cells - filled);
  return "\x1b[36m" + repeat(full, filled) + "\x1b[0;2m" + repeat(rest, cells - filled) + "\x1b[0m";
}

bool has_environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

bool stderr_is_terminal() {
  const char* term = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

// All but the width, which may change. Not for threads beside others: the locale is the process's.
TerminalStyle terminal_style() {
  TerminalStyle style;
  std::setlocale(LC_CTYPE, "");
  style.unicode = std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
  std::setlocale(LC_CTYPE, "C");
  style.colour = !has_environment("NO_COLOR");
  return style;
}

int terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : TerminalStyle{}.columns;
}

}  // namespace

std::string clock_time(double seconds) {
  const auto whole = static_cast<long long>(std::max(0.0, seconds) + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string progress_line(const ProgressState& state, const TerminalStyle& style) {
  const bool done = state.step >= state.steps;
  const std::string counter = fmt::format("{:>{}}/{}", state.step, std::to_string(state.steps).size(), state.steps);
  // In the order shown; the second number says which goes first when the line is too long (higher: earlier).
  struct Part {
    std::string text;
    int expendable;
  };
  std::vector<Part> parts = {{"loss " + loss_text(state.loss, 3), 0}};
  if (state.validation_loss) parts.push_back({"val " + loss_text(*state.validation_loss, 3), 2});
  parts.push_back({human_count(state.tokens_per_second) + " tok/s", 3});
  parts.push_back({"bubble " + percent(state.bubble_fraction), 4});
  parts.push_back({done ? "in " + clock_time(state.seconds) : clock_time(state.seconds_left()) + " left", 1});

  const auto width = [&] {
    std::size_t sum = counter.size();
    for (const Part& part : parts) sum += 2 + part.text.size();
    return static_cast<int>(sum);
  };
  while (parts.size() > 1 && width() + 1 + kShortestBar > style.columns) {
    parts.erase(std::max_element(parts.begin(), parts.end(),
                                 [](const Part& a, const Part& b) { return a.expendable < b.expendable; }));
  }
  std::string line = counter;
  if (const int cells = std::min(style.columns - width() - 1, kLongestBar); cells >= kShortestBar) {
    line += " " + bar(static_cast<double>(state.step) / state.steps, cells, style);
  }
  for (const Part& part : parts) line += "  " + part.text;
  return width() > style.columns ? counter.substr(0, static_cast<std::size_t>(std::max(0, style.columns))) : line;
}

// The line at the bottom of the terminal. The mutex is held from clear to redraw around a log line of any thread.
class Progress::Bar {
 public:
  Bar() {
    current = this;
    log::set_interrupt(
        [] {
          current->mutex_.lock();
          current->write("\r\x1b[K");
        },
        [] {
          current->write(current->line_);
          current->mutex_.unlock();
        });
  }
  ~Bar() {
    log::set_interrupt(nullptr, nullptr);
    if (!line_.empty()) write("\n");
  }
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;

  void draw(const ProgressState& state) {
    const auto now = std::chrono::steady_clock::now();
    if (state.step < state.steps && now - drawn_ < std::chrono::milliseconds(50)) return;
    drawn_ = now;
    style_.columns = terminal_columns() - 1;  // the last column would wrap the cursor
    const std::scoped_lock lock(mutex_);
    line_ = progress_line(state, style_);
    write("\r" + line_ + "\x1b[K");
  }

 private:
  static void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }
  static inline Bar* current = nullptr;
  TerminalStyle style_ = terminal_style();
  std::mutex mutex_;
  std::string line_;
  std::chrono::steady_clock::time_point drawn_{};
};

Progress::Progress(int first_step, int steps) : bar_(stderr_is_terminal() ? std::make_unique<Bar>() : nullptr) {
  state_.first_step = first_step;
  state_.steps = steps;
}
Progress::~Progress() = default;

void Progress::step(const StepMetrics& metrics) {
  // Exponential mean over about ten steps: steady enough to read, quick enough to follow.
  const auto mean = [&](double before, double now) {
    return state_.step < state_.first_step + 2 ? now : 0.9 * before + 0.1 * now;
  };
  state_.tokens_per_second = mean(state_.tokens_per_second, metrics.tokens_per_second);
  state_.bubble_fraction = mean(state_.bubble_fraction, metrics.bubble_fraction);
  state_.step = metrics.step + 1;
  state_.loss = metrics.loss;
  state_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  if (bar_) {
    bar_->draw(state_);
    return;
  }
  const auto tenth = [&](int step) { return 10LL * step / state_.steps; };
  if (state_.step > 1 && tenth(state_.step) == tenth(state_.step - 1)) return;
  std::string line = fmt::format("step {}/{}: loss {}", state_.step, state_.steps, loss_text(state_.loss, 4));
  if (state_.validation_loss) line += ", validation " + loss_text(*state_.validation_loss, 4);
  line +=
      fmt::format(", {} tokens/s, bubble {}", human_count(state_.tokens_per_second), percent(state_.bubble_fraction));
  if (state_.step < state_.steps) line += ", " + clock_time(state_.seconds_left()) + " left";
  log::info(line);
}

void Progress::validation(int step, double loss) {
  state_.validation_loss = loss;
  log::info(fmt::format("step {}: validation loss {}", step, loss_text(loss, 4)));
}

}  // namespace cuboid::launch
