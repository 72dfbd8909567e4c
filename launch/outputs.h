// The folder and files that a run writes: looked at before anything starts, made when it does.
#pragma once

#include <memory>
#include <string>

#include "cuboid/core/error.h"
#include "cuboid/formats/durable.h"
#include "cuboid/value/run_config.h"

namespace cuboid::launch {

/// Adds the reason why the file that `flag` names ("--html") could not be written; nothing for an empty path. Makes
/// nothing.
void check_new_file(const std::string& flag, const std::string& path, Problems& problems);

/// Adds the reasons why --out or --dump-grads could not be written, and what needs --out without it. Makes nothing.
void check_outputs(const RunConfig& run, Problems& problems);

/// The run with absolute paths, so that its run file starts the same run from any folder.
RunConfig with_absolute_paths(RunConfig run);

/// Makes the folder of --out, keeps other runs out of it as long as the lock lives, and writes its run.toml.
/// @throws Error{request} with the system's reason, or naming the process that uses the folder. @pre out is given
std::unique_ptr<FolderLock> make_output_folder(const RunConfig& run);

}  // namespace cuboid::launch
