// SPDX-License-Identifier: MIT
//! @file What a rank brings to a network: memory that peers put to, and how faults travel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace mori_ep::transport {

struct Ends {
  std::span<std::byte> arena, board;     //!< a signal may go to either, bytes to the arena
  std::shared_ptr<const void> owner;     //!< of both
  std::function<std::uint64_t()> fault;  //!< nonzero once this rank has failed: what far ranks are then told, once
  std::size_t notices = 0;               //!< [W] words of the board, by the rank that tells
  std::function<void(int)> lost;         //!< told, by a thread of the network, of a peer that it does not reach
};

}  // namespace mori_ep::transport
