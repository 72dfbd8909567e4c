// What a person sees while a run goes on: on a terminal one line that is redrawn in place, otherwise a line after every
// tenth of the steps. Everything goes to standard error.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "cuboid/train/trainer.h"

namespace cuboid::launch {

struct ProgressState {
  int step = 0;  ///< steps done
  int steps = 1;
  double loss = 0;
  std::optional<double> validation_loss;
  double tokens_per_second = 0;
  double bubble_fraction = 0;
  double seconds = 0;  ///< since the start
  int first_step = 0;  ///< steps that were done at the start

  /// At the mean pace so far.
  double seconds_left() const { return step > first_step ? seconds / (step - first_step) * (steps - step) : 0; }
};

/// How a terminal is drawn on.
struct TerminalStyle {
  int columns = 80;
  bool unicode = true;
  bool colour = true;
};

/// The bar's line, at most `columns` wide (escape sequences not counted). What does not fit is left out, least
/// important first: bubble, tokens per second, validation loss, time left; the bar shrinks before that.
std::string progress_line(const ProgressState& state, const TerminalStyle& style);

/// "0:42", "12:05", "3:02:09".
std::string clock_time(double seconds);

/// Shows a run's progress. While one lives, log lines appear above the bar. One at a time; made and ended on one
/// thread.
class Progress {
 public:
  Progress(int first_step, int steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepMetrics& metrics);
  void validation(int step, double loss);

 private:
  class Bar;
  ProgressState state_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::unique_ptr<Bar> bar_;  ///< null: standard error is no terminal
};

}  // namespace cuboid::launch
