// SPDX-License-Identifier: MIT
//! @file Measures mori_ep itself, on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "meeting.hpp"
#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/env.hpp"
#include "mori_ep/fabric/counters.hpp"
#include "mori_ep/ep_dispatch_combine.hpp"
#include "problem.hpp"
#include "stats.hpp"

namespace ep_bench {

//! @brief What a dispatch and a combine of all ranks put on the wire.
struct Wire {
  double dispatch_bytes = 0, combine_bytes = 0;
  std::vector<mori_ep::fabric::Traffic> traffic;  //!< [rank][peer], of the whole run
};

//! @brief What came of one configuration.
struct Outcome {
  Phases phases;
  std::vector<double> floor_us;          //!< samples of empty kernels launched as the phases are; none on the host
  mori_ep::launch::LaunchParams launch;  //!< in force, where it is known
  std::optional<Wire> wire;              //!< where there are several nodes
  std::string check;                     //!< "ok", or what differs
  [[nodiscard]] bool ok() const { return check == "ok"; }
};

//! @brief Called now and then with the part done, 0 to 1, by one rank, never inside a timed phase.
using Progress = std::function<void(double)>;

//! @brief The arena of one rank.
//! @throw UsageError when the library refuses the configuration
[[nodiscard]] mori_ep::Footprint footprint(const Config& config);

//! @brief What the operator is made with.
[[nodiscard]] mori_ep::EpDispatchCombineConfig operator_config(const Config& config);

//! @brief Bytes that the run of this problem will touch, all ranks together.
[[nodiscard]] std::int64_t needed_bytes(const Problem& problem);

//! @brief Verifies, times, verifies again. Collective: each rank of `comm` calls it with the same problem, and with its
//!        own part in a meeting of them all. Rank 0 calls `progress`.
//! @return the same on every rank that has not ended
[[nodiscard]] Outcome run_rank(const Problem& problem, const mori_ep::comm::Communicator& comm, Meeting meeting,
                               const Progress& progress);

//! @brief The same with all ranks as threads of this process.
[[nodiscard]] Outcome run_threads(const Problem& problem, const mori_ep::Environment& environment,
                                  const Progress& progress);

}  // namespace ep_bench
