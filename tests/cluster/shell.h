// Commands as a user types them, with a limit in time.
#pragma once

#include <string>

namespace cuboid::test {

struct Ended {
  int status = -1;  ///< exit status; 128 + signal
  std::string out, err;
  double seconds = 0;
};

/// Runs a line of shell. CUBOID and MPIRUN are set to the program and to mpirun with what tests need.
Ended shell(const std::string& line);

/// Starts a training run, waits until it has trained a step, sends a signal to one of its processes (by its number in
/// the job), and waits for the end. The seconds are those since the signal; with more signals, one follows each
/// restart, and they count from the last.
/// @param mark  words of the command line by which its processes are found
Ended shell_and_signal(const std::string& launcher, const std::string& training, const std::string& mark, int process,
                       const std::string& signal, int signals = 1);

}  // namespace cuboid::test
