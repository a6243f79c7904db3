// SPDX-License-Identifier: MIT
//! @file Measures mori_ep itself: all ranks as threads of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "mori_ep/ep_dispatch_combine.hpp"
#include "problem.hpp"
#include "stats.hpp"

namespace ep_bench {

//! @brief What came of one configuration.
struct Outcome {
  Phases phases;
  std::vector<double> floor_us;          //!< samples of empty kernels launched as the phases are; none on the host
  mori_ep::launch::LaunchParams launch;  //!< in force, where it is known
  std::string check;                     //!< "ok", or what differs
  [[nodiscard]] bool ok() const { return check == "ok"; }
};

//! @brief Called now and then with the part done, 0 to 1, by one thread, never inside a timed phase.
using Progress = std::function<void(double)>;

//! @brief The arena of one rank.
//! @throw UsageError when the library refuses the configuration
[[nodiscard]] mori_ep::Footprint footprint(const Config& config);

//! @brief What the operator is made with.
[[nodiscard]] mori_ep::EpDispatchCombineConfig operator_config(const Config& config);

//! @brief Bytes that the run of this problem will touch, all ranks together.
[[nodiscard]] std::int64_t needed_bytes(const Problem& problem);

//! @brief Verifies, times, verifies again.
[[nodiscard]] Outcome run_host(const Problem& problem, const Progress& progress);

}  // namespace ep_bench
