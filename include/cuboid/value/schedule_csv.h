// The CSV of torch.distributed.pipelining: row i is rank i, cells such as 0F0, 2B3, 1I2, 1W2, 0SEND_F1, 1UNSHARD,
// (0F7;7B3)OVERLAP_F_B. Reading checks cells, not the schedule: that is verify's work.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cuboid/value/schedule.h"

namespace cuboid {

/// What the letter B means.
enum class CsvDialect {
  automatic,  ///< of_2024 if a cell says BW, current otherwise
  current,    ///< B: the whole backward; I and W: its two parts
  of_2024,    ///< B: the input gradient only; W; BW: both
};

struct CsvSchedule {
  Schedule schedule;  ///< stages and micro-batches are counted from the computing cells
  std::vector<std::string> notes;
};

/// @param name  the schedule's name, used in messages (a path)
/// @throws Error{request} with the row and cell of each fault: unknown action, missing or superfluous number, trailing
///         characters, a blank cell in a file with transfers, no computing cell at all.
CsvSchedule parse_schedule_csv(std::string_view text, const std::string& name,
                               CsvDialect dialect = CsvDialect::automatic);

/// Reads a file. @throws Error{request} also for a file that cannot be read
CsvSchedule read_schedule_csv(const std::string& path, CsvDialect dialect = CsvDialect::automatic);

/// In the current dialect, a line a rank. STEP, which the format does not have, is left out.
std::string to_csv(const Schedule& schedule);

}  // namespace cuboid
