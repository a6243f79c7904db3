// SPDX-License-Identifier: MIT
//! @file A request as the writes that a device can do.
#pragma once

#include <algorithm>
#include <cstdint>

#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::fabric::verbs {

//! @brief One RDMA write: a run of the arena's bytes, or a signal.
struct Part {
  bool signal = false;
  std::uint64_t local_offset = 0, remote_offset = 0, bytes = 0;
};

//! @brief The parts of a request, in the order in which they are to be posted: runs of at most `most`, then the signal.
struct Split {
  std::uint64_t most;

  [[nodiscard]] constexpr std::uint64_t runs(const WorkRequest& request) const noexcept {
    if (request.id.operation == Operation::signal) return 0;
    // A put of nothing is a write of nothing: it completes in its turn. A signal says as much.
    if (request.bytes == 0) return request.id.operation == Operation::put ? 1 : 0;
    return (request.bytes - 1) / most + 1;
  }
  [[nodiscard]] constexpr std::uint64_t parts(const WorkRequest& request) const noexcept {
    return runs(request) + (request.id.operation == Operation::put ? 0 : 1);
  }
  [[nodiscard]] constexpr Part part(const WorkRequest& request, std::uint64_t i) const noexcept {
    if (i == runs(request))
      return {.signal = true, .remote_offset = request.signal_offset, .bytes = sizeof(request.signal)};
    std::uint64_t const begin = i * most;
    return {.local_offset = request.local_offset + begin,
            .remote_offset = request.remote_offset + begin,
            .bytes = std::min(most, request.bytes - begin)};
  }
};

}  // namespace mori_ep::fabric::verbs
