// SPDX-License-Identifier: MIT
//! @file How a kernel writes down a request: 32 bytes.
#pragma once

#include <cstdint>

#include "mori_ep/exec/attributes.hpp"
#include "mori_ep/exec/signal_word.hpp"
#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::fabric {

//! @brief A request in four words; the last is written last and publishes the others, by the number of the command in
//!        its ring, which no older content of the slot has.
//!
//! | word | low half | high half |
//! |---|---|---|
//! | 0 | local offset / 16 | remote offset / 16 |
//! | 1 | bytes / 16 | signal offset / 8 |
//! | 2 | the signal's payload | epoch, the signal's too |
//! | 3 | operation 2 bits, queue pair 6, peer 12 | sequence |
struct Command {
  static constexpr std::uint64_t kGrain = 16;  //!< of offsets and bytes: rows, and whatever lies beside them
  static constexpr std::uint64_t kSignalGrain = 8;
  static constexpr std::uint64_t kReach = kGrain << 32;              //!< offsets and bytes are less
  static constexpr std::uint64_t kSignalReach = kSignalGrain << 32;  //!< offsets of signals are less

  std::uint64_t words[4];

  //! @brief Is nothing of `request` lost in 32 bytes? For the host, when it lays out an arena; its sequence is the
  //!        proxy's to choose.
  [[nodiscard]] static constexpr bool holds(const WorkRequest& r) noexcept {
    auto const fits = [](std::uint64_t offset, std::uint64_t grain) {
      return offset % grain == 0 && offset < grain << 32;
    };
    return fits(r.local_offset, kGrain) && fits(r.remote_offset, kGrain) && fits(r.bytes, kGrain) &&
           fits(r.signal_offset, kSignalGrain) && r.id.peer < WorkId::kMostPeers &&
           r.id.queue_pair < WorkId::kMostQueuePairs &&
           (r.id.operation == Operation::put || exec::signal_epoch(r.signal) == r.id.epoch);
  }

  [[nodiscard]] MORI_EP_HD static constexpr Command of(const WorkRequest& r, std::uint32_t sequence) noexcept {
    return {{halves(r.local_offset / kGrain, r.remote_offset / kGrain),
             halves(r.bytes / kGrain, r.signal_offset / kSignalGrain),
             exec::signal_word(r.id.epoch, exec::signal_payload(r.signal)),
             halves(static_cast<std::uint32_t>(r.id.operation) | std::uint32_t{r.id.queue_pair} << 2 |
                        std::uint32_t{r.id.peer} << 8,
                    sequence)}};
  }

  [[nodiscard]] constexpr std::uint32_t sequence() const noexcept { return high(words[3]); }
  [[nodiscard]] constexpr WorkRequest request() const noexcept {
    return {.id = {.operation = static_cast<Operation>(words[3] & 3),
                   .queue_pair = static_cast<std::uint8_t>(words[3] >> 2 & 0x3f),
                   .peer = static_cast<std::uint16_t>(words[3] >> 8 & 0xfff),
                   .epoch = exec::signal_epoch(words[2])},
            .local_offset = low(words[0]) * kGrain,
            .remote_offset = high(words[0]) * kGrain,
            .bytes = low(words[1]) * kGrain,
            .signal_offset = high(words[1]) * kSignalGrain,
            .signal = words[2]};
  }

 private:
  MORI_EP_HD static constexpr std::uint64_t halves(std::uint64_t low, std::uint64_t high) noexcept {
    return low | high << 32;
  }
  static constexpr std::uint32_t low(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word); }
  static constexpr std::uint32_t high(std::uint64_t word) noexcept { return static_cast<std::uint32_t>(word >> 32); }
};
static_assert(sizeof(Command) == 32);

}  // namespace mori_ep::fabric
