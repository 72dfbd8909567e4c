// In place of mpi_transport.cpp where MPI was not found when this was built.
#include "cuboid/comm/processes.h"
#include "cuboid/core/error.h"

#include "transport.h"

namespace cuboid::detail {

std::unique_ptr<Transport> make_mpi_transport() {
  throw Error(ErrorKind::request,
              "--fabric mpi: this program was built without MPI; install libopenmpi-dev and build it again");
}

}  // namespace cuboid::detail

bool cuboid::built_with_mpi() {
  return false;
}
