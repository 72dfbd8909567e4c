// The folder and files that a run writes: looked at before anything starts, made when it does.
#pragma once

#include <string>

#include "cuboid/core/error.h"
#include "cuboid/value/run_config.h"

namespace cuboid::launch {

/// Adds the reasons why --out or --dump-grads could not be written. Makes nothing.
void check_outputs(const RunConfig& run, Problems& problems);

/// Makes the folder of --out and writes its run.toml. Paths of inputs are written absolute, so that the file starts the
/// same run from any folder. @throws Error{request} with the system's reason
void make_output_folder(const RunConfig& run);

}  // namespace cuboid::launch
