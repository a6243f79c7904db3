// SPDX-License-Identifier: MIT
//! @file `ep_bench run` under mpirun.
#include <string>

#include <mpi.h>

#include "mori_ep/comm/mpi_bootstrap.hpp"
#include "mpi_session.hpp"
#include "process_ranks.hpp"

namespace ep_bench {

int run_under_mpi(const Options& options, std::size_t problems, const Campaign& campaign) {
  MpiSession const session;
  if (session.world() != options.world)
    throw UsageError("the launcher speaks of " + std::to_string(options.world) + " processes and MPI of " +
                     std::to_string(session.world()) + ": this program is built with another MPI than the launcher's.");
  auto const join = [&] { return mori_ep::comm::join_mpi(MPI_COMM_WORLD, mori_ep::TcpOptions(options.environment)); };
  Ending const ending = run_as_rank(session.rank(), options, problems, join, campaign, false);
  // Ranks that were refused are all alive; one that failed may never come to MPI_Finalize.
  if (!ending.together && ending.exit_code == 1) MPI_Abort(MPI_COMM_WORLD, ending.exit_code);
  return ending.exit_code;
}

}  // namespace ep_bench
