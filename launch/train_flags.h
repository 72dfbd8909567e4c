// The flags that describe a training run, and the RunConfig they make: defaults, then the run file, then flags.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuboid/core/error.h"
#include "cuboid/formats/checkpoint.h"
#include "cuboid/value/run_config.h"

#include "launch/flags.h"
#include "launch/gpus.h"

namespace cuboid::launch {

enum class FabricKind { automatic, threads, mpi };

/// What the flags are stored into: a RunConfig whose grid is still in parts.
struct RunDraft {
  RunConfig run;
  AxisValues degrees{{1, 1, 1, 1, 1}};
  std::string order{Grid::kDefaultOrder};
  FabricKind fabric = FabricKind::automatic;
  DeviceChoice device = DeviceChoice::automatic;
  int ranks_per_process = 1;
  std::string resume;                    ///< "auto", a path, or empty
  std::optional<Checkpoint> checkpoint;  ///< what --resume found
};

/// Declares the flags of a run; their targets are the draft's members, their defaults its present values.
void add_run_flags(Flags& flags, RunDraft& draft);

/// Parses the arguments into a run. With --config, the file's values come first and flags override them; without it,
/// --resume takes the values of the run that wrote the checkpoint.
/// Every fault goes to problems; the result is usable only if there is none.
RunConfig read_run(Flags& flags, RunDraft& draft, const std::vector<std::string>& arguments, Problems& problems);

}  // namespace cuboid::launch
