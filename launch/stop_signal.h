// Being told to stop: SIGTERM (preemption, `kill`) and SIGUSR1 (Slurm's --signal) ask for an end at the next step
// boundary. A second SIGTERM ends the process at once, as it would without this.
#pragma once

#include <string>

namespace cuboid::launch {

/// Installs the handlers; of SIGTERM only for a process that is alone: in a job the launcher gives it a second to end,
/// and the job's own handler uses that. Also ignores SIGXFSZ, so that a file over its size limit is a write's error
/// like a full disk.
void listen_for_stop(bool alone = true);
/// "SIGTERM", "SIGUSR1"; empty: none has come.
std::string stop_signal();

}  // namespace cuboid::launch
