// What a run reports to machines: a line of JSON a step in DIR/metrics.jsonl, and one document at the end.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "cuboid/train/trainer.h"

#include "launch/step_comparison.h"

namespace cuboid::launch {

/// One line of metrics.jsonl, without the line feed. Floats are round-trip exact; what is not a number is null.
std::string metrics_line(const StepMetrics& metrics);

/// The document of --json. @param predicted  each rank's memory as it was predicted; empty: it was not
std::string result_document(const RunStart& start, const TrainResult& result, const Grid& grid,
                            const std::vector<MemoryUse>& predicted, const StepComparison& steps);

/// DIR/metrics.jsonl, written line by line: after each step the file is complete up to that step.
class MetricsFile {
 public:
  /// Lines of an existing file from before `first_step` stay; the rest is replaced. @throws Error{request} with the
  /// system's reason
  MetricsFile(const std::string& path, int first_step);
  /// @throws Error{failed} with the system's reason (a full disk)
  void add(const StepMetrics& metrics);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace cuboid::launch
