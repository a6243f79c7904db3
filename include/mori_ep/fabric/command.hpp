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
//! | word | low bits | high bits |
//! |---|---|---|
//! | 0 | local offset, 38 | bytes, the low 26 |
//! | 1 | remote offset, 38 | bytes, the high 6; signal offset / 8, the low 20 |
//! | 2 | the signal's payload, 32 | epoch, the signal's too |
//! | 3 | operation 2, queue pair 6, peer 12, to_board 1, signal offset / 8, the high 11 | sequence, 32 |
struct Command {
  static constexpr std::uint64_t kReach = std::uint64_t{1} << 38;  //!< offsets are less
  static constexpr std::uint64_t kMostBytes = (std::uint64_t{1} << 32) - 1;
  static constexpr std::uint64_t kSignalReach = std::uint64_t{1} << 34;  //!< offsets of signals are less

  std::uint64_t words[4];

  //! @brief Is nothing of `request` lost in 32 bytes? For the host, when it lays out an arena; its sequence is the
  //!        proxy's to choose.
  [[nodiscard]] static constexpr bool holds(const WorkRequest& r) noexcept {
    return r.local_offset < kReach && r.remote_offset < kReach && r.bytes <= kMostBytes && r.signal_offset % 8 == 0 &&
           r.signal_offset < kSignalReach && r.id.peer < WorkId::kMostPeers &&
           r.id.queue_pair < WorkId::kMostQueuePairs &&
           (r.id.operation == Operation::put || exec::signal_epoch(r.signal) == r.id.epoch);
  }

  [[nodiscard]] MORI_EP_HD static constexpr Command of(const WorkRequest& r, std::uint32_t sequence) noexcept {
    std::uint64_t const at = r.signal_offset / 8;
    return {{r.local_offset | r.bytes << 38, r.remote_offset | r.bytes >> 26 << 38 | at << 44,
             exec::signal_word(r.id.epoch, exec::signal_payload(r.signal)),
             static_cast<std::uint64_t>(r.id.operation) | std::uint64_t{r.id.queue_pair} << 2 |
                 std::uint64_t{r.id.peer} << 8 | std::uint64_t{r.to_board} << 20 | at >> 20 << 21 |
                 std::uint64_t{sequence} << 32}};
  }

  [[nodiscard]] constexpr std::uint32_t sequence() const noexcept { return static_cast<std::uint32_t>(words[3] >> 32); }
  [[nodiscard]] constexpr WorkRequest request() const noexcept {
    return {.id = {.operation = static_cast<Operation>(words[3] & 3),
                   .queue_pair = static_cast<std::uint8_t>(words[3] >> 2 & 0x3f),
                   .peer = static_cast<std::uint16_t>(words[3] >> 8 & 0xfff),
                   .epoch = exec::signal_epoch(words[2])},
            .local_offset = words[0] & (kReach - 1),
            .remote_offset = words[1] & (kReach - 1),
            .bytes = words[0] >> 38 | (words[1] >> 38 & 0x3f) << 26,
            .signal_offset = (words[1] >> 44 | (words[3] >> 21 & 0x7ff) << 20) * 8,
            .signal = words[2],
            .to_board = (words[3] >> 20 & 1) != 0};
  }
};
static_assert(sizeof(Command) == 32);
static_assert([] {
  WorkRequest const most{.id = {.operation = Operation::put_signal, .queue_pair = 63, .peer = 4095, .epoch = ~0u},
                         .local_offset = Command::kReach - 1,
                         .remote_offset = Command::kReach - 1,
                         .bytes = Command::kMostBytes,
                         .signal_offset = Command::kSignalReach - 8,
                         .signal = ~std::uint64_t{0},
                         .to_board = true};
  WorkRequest const back = Command::of(most, 7).request();
  return Command::holds(most) && back.id == most.id && back.local_offset == most.local_offset &&
         back.remote_offset == most.remote_offset && back.bytes == most.bytes &&
         back.signal_offset == most.signal_offset && back.signal == most.signal && back.to_board;
}());

}  // namespace mori_ep::fabric
