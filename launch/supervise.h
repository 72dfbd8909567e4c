// Runs a launcher, passes on what its processes say with their rank, and starts it again after a failure.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace cuboid::launch {

/// @param words  mpirun with --tag-output. Lines of process 0's standard output go to standard output as they are, all
///   others to standard error as "process 3: …". SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 are passed on; the first two
///   also end the restarts.
/// @returns 0, 2 (the request is wrong: not tried again), 4 (a deadline), or 3 for any other failure
/// @param again  asked before each restart: its words
/// @throws what `again` throws
int supervise(const std::vector<std::string>& words, const std::function<std::vector<std::string>()>& again,
              int max_restarts);

}  // namespace cuboid::launch
