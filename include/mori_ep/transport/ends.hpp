// SPDX-License-Identifier: MIT
//! @file What a rank brings to a network: whom it reaches without, memory that peers put to, and how faults travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "mori_ep/exec/attributes.hpp"

namespace mori_ep::transport {

//! @brief The ranks [begin, end) that load and store reach.
struct NearRanks {
  std::int32_t begin = 0, end = 1;

  [[nodiscard]] MORI_EP_HD constexpr bool has(std::int32_t rank) const noexcept { return rank >= begin && rank < end; }
};

struct Ends {
  NearRanks near;
  std::span<std::byte> arena, board;                      //!< a signal may go to either, bytes to the arena
  std::shared_ptr<const void> owner;                      //!< of both
  std::function<void(std::shared_ptr<const void>)> keep;  //!< takes memory that is to be freed when the arena is
  std::function<std::uint64_t()> fault;    //!< nonzero once this rank has failed: what far ranks are then told, once
  std::size_t notices = 0;                 //!< [W] words of the board, by the rank that tells
  std::function<std::uint64_t(int)> lost;  //!< told, by a thread of the network, of a peer that it does not reach;
                                           //!< gives what far ranks are told then, if they were told nothing yet
};

}  // namespace mori_ep::transport
