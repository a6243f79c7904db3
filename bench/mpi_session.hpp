// SPDX-License-Identifier: MIT
//! @file Starting MPI, and who this process is there.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <string>

#include <mpi.h>

namespace ep_bench {

//! @brief MPI, from here to the end of the scope.
class MpiSession {
 public:
  MpiSession() {
    // On an oversubscribed machine MPI's users let waiting processes yield; mpirun --oversubscribe may not say so.
    ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &world_);
    MPI_Comm node;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &on_node_);
    MPI_Comm_free(&node);
  }
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;
  ~MpiSession() { MPI_Finalize(); }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int world() const { return world_; }
  [[nodiscard]] bool one_machine() const { return on_node_ == world_; }
  [[nodiscard]] static std::string library() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    std::string const all(text, static_cast<std::size_t>(length));
    return all.substr(0, all.find_first_of(",\n"));
  }

 private:
  int rank_ = 0, world_ = 1, on_node_ = 1;
};

}  // namespace ep_bench
