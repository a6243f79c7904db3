// SPDX-License-Identifier: MIT
//! @file What a proxy counts.
#pragma once

#include <atomic>
#include <cstdint>

namespace mori_ep::fabric {

//! @brief Since its start, over all peers; what went to each of them its fabric counts. As fabric::Counters, the proxy
//!        counts and any thread reads.
struct ProxyCounters {
  std::atomic<std::uint64_t> commands{0};    //!< read from rings
  std::atomic<std::uint64_t> posts{0};       //!< calls that took at least one request
  std::atomic<std::uint64_t> requests{0};    //!< taken by those calls
  std::atomic<std::uint64_t> refusals{0};    //!< calls that left some for later
  std::atomic<std::uint64_t> ended{0};       //!< requests that completed, well or not, once each
  std::atomic<std::uint64_t> duplicates{0};  //!< completions of requests that had ended
  std::atomic<std::uint64_t> dropped{0};     //!< commands to a peer that had failed, or that name none: never posted
};

}  // namespace mori_ep::fabric
