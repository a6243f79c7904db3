// SPDX-License-Identifier: MIT
//! @file The 64-bit word every rank signals with: an epoch and a payload, written in one store.
#pragma once

#include <cstdint>

#include "mori_ep/exec/attributes.hpp"

namespace mori_ep::exec {

//! @brief Packs {epoch, payload}. One 8-byte store publishes both, so a payload can never be read with a wrong epoch.
MORI_EP_HD constexpr std::uint64_t signal_word(std::uint32_t epoch, std::uint32_t payload) noexcept {
  return (std::uint64_t{epoch} << 32) | payload;
}
MORI_EP_HD constexpr std::uint32_t signal_epoch(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word >> 32);
}
MORI_EP_HD constexpr std::uint32_t signal_payload(std::uint64_t word) noexcept {
  return static_cast<std::uint32_t>(word);
}

//! @brief Is `a` later than `b`, by less than 2^16? Right across the wrap; a word may be older than that when nobody had
//!        reason to write it, and must not pass for a later one.
MORI_EP_HD constexpr bool epoch_after(std::uint32_t a, std::uint32_t b) noexcept {
  return a != b && a - b < (1u << 16);
}
static_assert(epoch_after(0u, 0xffffffffu) && !epoch_after(0xffffffffu, 0u) && !epoch_after(7u, 7u));
static_assert(!epoch_after(1u, 0x80000005u));

//! @brief How a wait ended.
enum class WaitEnd : std::uint32_t { arrived = 0, expired = 1, peer_fault = 2, out_of_step = 3, stopped = 4 };

//! @brief What a wait orders: everything the signaller released before the word, or nothing (for words that were posted).
enum class WaitOrder : std::uint32_t { acquire, none };

//! @brief What a wait saw.
struct WaitResult {
  WaitEnd end = WaitEnd::arrived;
  std::uint64_t word = 0;        //!< the signal word seen last
  std::int32_t fault_rank = -1;  //!< peer_fault: the rank whose fault word is set
};

//! @brief When a wait gives up: at its deadline, when this rank has failed, or when a peer says that it has.
struct WaitLimits {
  std::int64_t timeout_ns = 0;            //!< from the launch's start or its first wait, on the machine's own clock
  const std::uint32_t* failed = nullptr;  //!< this rank's fault flag: nonzero ends the wait (nobody waits twice)
  std::uint64_t* peer_words = nullptr;    //!< [2][world]: of peers, which write their faults there; of this rank, which
                                          //!< says there for whom it has waited half the time
  std::int32_t world = 0;
  std::int32_t peer = -1;   //!< who is waited for; -1: nobody is told
  bool by_network = false;  //!< of an operator with ranks that only a network reaches: what carries may want this core

  //! @brief Not 0 while this rank has waited long for `peer`.
  [[nodiscard]] MORI_EP_HD constexpr std::uint64_t* long_wait() const noexcept { return peer_words + world + peer; }
};

}  // namespace mori_ep::exec
