// SPDX-License-Identifier: MIT
//! @file Joining from an MPI program. Not part of mori_ep.hpp: only who includes this needs MPI.
#pragma once

#if !__has_include(<mpi.h>)
#error "mori_ep/comm/mpi_bootstrap.hpp needs MPI: install one (Debian and Ubuntu: libopenmpi-dev), link MPI::MPI_CXX."
#endif
#include <mpi.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "mori_ep/comm/tcp_bootstrap.hpp"

namespace mori_ep::comm {

//! @brief Collective over `mpi`, which is borrowed and used for two broadcasts; ranks and world are its own. What follows
//!        runs over connections of this library, so that waits have deadlines and a rank's end is no end of the job.
[[nodiscard]] inline Result<std::shared_ptr<Bootstrap>> join_mpi(MPI_Comm mpi = MPI_COMM_WORLD,
                                                                 const TcpOptions& options = {}) {
  int running = 0, ended = 0, rank = 0, world = 0;
  (void)MPI_Initialized(&running);
  (void)MPI_Finalized(&ended);
  if (running == 0 || ended != 0)
    return Error{.code = Errc::invalid_argument,
                 .phase = Phase::join,
                 .field = "MPI running",
                 .value = 0,
                 .limit = 1,
                 .hint = "Call MPI_Init before the join, and MPI_Finalize after it."};
  (void)MPI_Comm_rank(mpi, &rank);
  (void)MPI_Comm_size(mpi, &world);
  Result<TcpRoot> root = Error{.code = Errc::missing_rank, .phase = Phase::join, .rank = rank, .peer = 0};
  UniqueId id;
  std::int32_t there = 0;
  if (rank == 0) {
    root = get_unique_id(options);
    if (root.ok()) id = root->id();
    there = root.ok() ? 1 : 0;
  }
  (void)MPI_Bcast(&there, 1, MPI_INT32_T, 0, mpi);
  if (there == 0 && rank != 0)
    return Error{.code = Errc::missing_rank,
                 .phase = Phase::join,
                 .rank = rank,
                 .peer = 0,
                 .hint = "It cannot listen, so there is no id to join by; its own error says why."};
  (void)MPI_Bcast(id.bytes.data(), static_cast<int>(id.bytes.size()), MPI_BYTE, 0, mpi);
  if (rank != 0) return join_tcp(id, rank, world, options);
  if (!root.ok()) return root.status();
  return join_tcp(std::move(*root), world, options);
}

}  // namespace mori_ep::comm
