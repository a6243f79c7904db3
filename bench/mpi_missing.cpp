// SPDX-License-Identifier: MIT
#include "campaign.hpp"

namespace ep_bench {

int mpi_baseline(const Options&) {
  throw UsageError(
      "built without MPI, so there is nothing to compare with. Install an MPI for C++ (Debian, Ubuntu: apt-get install "
      "libopenmpi-dev openmpi-bin), then configure again and build.");
}

}  // namespace ep_bench
