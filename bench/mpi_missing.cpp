// SPDX-License-Identifier: MIT
#include <string>

#include "campaign.hpp"
#include "process_ranks.hpp"

namespace ep_bench {
namespace {

constexpr const char* kCure =
    " Install an MPI for C++ (Debian, Ubuntu: apt-get install libopenmpi-dev openmpi-bin), then configure again and "
    "build.";

}  // namespace

int mpi_baseline(const Options&) {
  throw UsageError(std::string("built without MPI, so there is nothing to compare with.") + kCure);
}

int run_under_mpi(const Options& options, std::size_t, const Campaign&) {
  throw UsageError("a launcher has started " + std::to_string(options.world) +
                   " processes, but this ep_bench was built without MPI." + kCure +
                   " Or start the ranks with --spawn " + std::to_string(options.world) + ".");
}

}  // namespace ep_bench
