// SPDX-License-Identifier: MIT
// Ranks that are processes of an MPI job. MPI carries the unique id, once; all else goes over connections and shared
// memory of the library's own.
//   mpirun --oversubscribe -np 4 mpi_bootstrap
#include <cstdio>
#include <utility>

#include <mpi.h>

#include "doubling.hpp"
#include "mori_ep/comm/mpi_bootstrap.hpp"

using namespace mori_ep;

namespace {

Status run_rank() {
  Result<Environment> environment = Environment::from_process();  // MORI_SOCKET_IFNAME, MORI_BOOTSTRAP_TIMEOUT, ...
  if (!environment.ok()) return environment.status();
  auto bootstrap = comm::join_mpi(MPI_COMM_WORLD, TcpOptions(*environment));
  if (!bootstrap.ok()) return bootstrap.status();
  Result<Communicator> comm = Communicator::create(std::move(*bootstrap), *environment);
  if (!comm.ok()) return comm.status();
  Result<int> wrong = double_tokens(*comm);
  if (!wrong.ok()) return wrong.status();
  std::printf("mpi_bootstrap: rank %d of %d: %d wrong elements\n", comm->rank(), comm->world(), *wrong);
  if (*wrong != 0) return Error{.code = Errc::invalid_argument, .field = "wrong elements", .value = *wrong, .limit = 0};
  return comm->barrier();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  Status const status = run_rank();
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);  // the others would wait for this process in MPI_Finalize
  }
  MPI_Finalize();
  return 0;
}
