// The run file: a RunConfig as TOML, written to DIR/run.toml and read by --config. One flat table; keys are train's
// flags without the dashes (`global-batch = 8`), comments group and explain them. A key left out keeps its default.
#pragma once

#include <string>
#include <vector>

#include "cuboid/value/run_config.h"

namespace cuboid {

/// The file's text: every setting with its meaning and unit as a comment. Doubles are written round-trip exact, so
/// parse_run_file(write_run_file(run)) == run. @pre doubles are finite
std::string write_run_file(const RunConfig& run);

/// @param text    TOML
/// @param source  for messages
/// @throws Error{request} with all reasons: syntax (with the line), unknown keys (with the nearest), values of the
/// wrong
///         type or out of the type's range. Whether the values make sense together is checked by the trainer.
RunConfig parse_run_file(const std::string& text, const std::string& source);

/// A setting in which two runs differ, its values as the run file writes them.
struct SettingDifference {
  std::string section;  ///< of the run file: "Process grid", "Training", …
  std::string key;
  std::string stored;
  std::string now;
};
/// In the order of the run file; empty if the runs are equal.
std::vector<SettingDifference> compare_runs(const RunConfig& stored, const RunConfig& now);

/// parse_run_file on a file.
RunConfig read_run_file(const std::string& path);

}  // namespace cuboid
