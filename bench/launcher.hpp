// SPDX-License-Identifier: MIT
//! @file What a launcher of processes (mpirun, srun, ...) tells them before MPI starts.
#pragma once

#include <cstdlib>
#include <initializer_list>
#include <string>

namespace ep_bench {

//! @brief The first of these variables that is set.
inline std::string first_set(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* text = std::getenv(name); text != nullptr) return text;
  return "";
}

//! @brief Every process of a launcher parses the same line; one of them may complain about it.
inline bool first_process() {
  std::string const rank = first_set({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"});
  return rank.empty() || rank == "0";
}

//! @brief How many processes a launcher has started, this one among them; 1 without a launcher.
inline int launched_processes() {
  std::string const size = first_set({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"});
  return size.empty() ? 1 : std::atoi(size.c_str());
}

}  // namespace ep_bench
