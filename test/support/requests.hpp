// SPDX-License-Identifier: MIT
//! @file Requests to a fabric, and what becomes of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mori_ep/exec/signal_word.hpp"
#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::test {

inline constexpr std::uint64_t kSignals = 1024;  // bytes at the front of each arena; rows behind them

inline fabric::WorkRequest request(fabric::Operation operation, int peer, std::uint16_t sequence, std::uint64_t offset,
                                   std::uint64_t bytes, std::uint64_t signal_offset = 0, int queue_pair = 0) {
  return {.id = {.operation = operation,
                 .queue_pair = static_cast<std::uint8_t>(queue_pair),
                 .peer = static_cast<std::uint16_t>(peer),
                 .sequence = sequence,
                 .epoch = 7},
          .local_offset = offset,
          .remote_offset = offset,
          .bytes = bytes,
          .signal_offset = signal_offset,
          .signal = exec::signal_word(7, sequence)};
}

template <class F>
std::vector<fabric::Completion> poll_until(F& end, std::size_t n,
                                           std::chrono::milliseconds bound = std::chrono::milliseconds(20000)) {
  std::vector<fabric::Completion> all;
  for (auto const deadline = std::chrono::steady_clock::now() + bound;
       all.size() < n && std::chrono::steady_clock::now() < deadline;) {
    fabric::Completion some[3];
    std::size_t const got = end.poll(some);
    all.insert(all.end(), some, some + got);
  }
  return all;
}

}  // namespace mori_ep::test
