// SPDX-License-Identifier: MIT
//! @file What a fabric counts for each peer.
#pragma once

#include <atomic>
#include <cstdint>

namespace mori_ep::fabric {

//! @brief What a rank has asked of a network for one peer, as Counters had it. Plain data.
struct Traffic {
  std::uint64_t bytes = 0, messages = 0, refusals = 0, completions = 0, errors = 0, longest_wait_ns = 0;
};

//! @brief Of one peer, from the connection on. One thread counts, any thread reads at any time; a reader may see one
//!        counter newer than another.
struct Counters {
  std::atomic<std::uint64_t> bytes{0};            //!< of puts that were taken, without what the network adds
  std::atomic<std::uint64_t> messages{0};         //!< requests that were taken; a request may be several on the wire
  std::atomic<std::uint64_t> refusals{0};         //!< times that a queue pair was full
  std::atomic<std::uint64_t> completions{0};      //!< requests that have ended well
  std::atomic<std::uint64_t> errors{0};           //!< requests that have not
  std::atomic<std::uint64_t> longest_wait_ns{0};  //!< between a request's being taken and its end

  [[nodiscard]] Traffic now() const noexcept {
    auto const of = [](const std::atomic<std::uint64_t>& counter) { return counter.load(std::memory_order_relaxed); };
    return {of(bytes), of(messages), of(refusals), of(completions), of(errors), of(longest_wait_ns)};
  }
  //! @brief Adds, from the one thread that counts.
  static void add(std::atomic<std::uint64_t>& counter, std::uint64_t amount) noexcept {
    counter.store(counter.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  void waited(std::uint64_t ns) noexcept {
    if (ns > longest_wait_ns.load(std::memory_order_relaxed)) longest_wait_ns.store(ns, std::memory_order_relaxed);
  }
};

}  // namespace mori_ep::fabric
