// The job that this process is part of, if a launcher such as mpirun started it: the program's one connection to it.
#pragma once

#include "cuboid/comm/processes.h"

#include "launch/train_flags.h"

namespace cuboid::launch {

/// Joins the job if the surroundings or the flag say so; null: this process is alone.
/// @throws Error{request} where threads are asked for in a job of several processes, or this build has no MPI
Processes* join_job(FabricKind fabric);
/// The job joined; null if none was.
Processes* job();
/// Whether this process should print what concerns all.
bool speaks();

}  // namespace cuboid::launch
