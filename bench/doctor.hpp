// SPDX-License-Identifier: MIT
//! @file `ep_bench doctor`: the environment variables in force, and whether this machine can run ranks.
#pragma once

#include <string>

namespace ep_bench {

struct DoctorOptions {
  int world = 8;     //!< ranks on this machine
  std::string heap;  //!< symmetric heap of each rank, written as MORI_SHMEM_HEAP_SIZE is; empty: not asked
  bool json = false;
};

//! @brief Prints the table of variables and every check on stdout.
//! @return the exit code: 0, or 1 when a check failed
//! @throw UsageError when options.heap is no size
int doctor(const DoctorOptions& options);

}  // namespace ep_bench
