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

}  // namespace cuboid::test
