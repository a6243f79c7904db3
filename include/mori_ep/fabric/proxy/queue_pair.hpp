// SPDX-License-Identifier: MIT
//! @file One queue pair as a proxy sees it: commands that wait for their post, and requests in flight.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::fabric::proxy {

//! @brief Where a command is kept until it has ended: an index into all rings' slots.
using Place = std::uint32_t;
inline constexpr Place kNowhere = ~Place{0};

//! @brief A queue of places, linked through a table that all queues share, so that no queue needs room of its own.
class PlaceQueue {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == kNowhere; }
  [[nodiscard]] Place first() const noexcept { return first_; }
  void push(Place place, std::vector<Place>& next) noexcept {
    next[place] = kNowhere;
    (empty() ? first_ : next[last_]) = place;
    last_ = place;
  }
  void pop(const std::vector<Place>& next) noexcept { first_ = next[first_]; }

 private:
  Place first_ = kNowhere, last_ = kNowhere;
};

//! @brief Requests in flight, by sequence. Those between the oldest in flight and the newest fit kLatestDuplicate, so
//!        that a sequence of 12 bits names one of them or a duplicate, never another.
class Window {
 public:
  explicit Window(int depth)
      : depth_(std::min(static_cast<std::uint32_t>(depth), kLatestDuplicate)),
        places_(std::bit_ceil(depth_), kNowhere) {}

  [[nodiscard]] std::uint32_t room() const noexcept {
    return std::min(depth_ - in_flight_, static_cast<std::uint32_t>(places_.size()) - (next_ - oldest_));
  }
  [[nodiscard]] std::uint32_t in_flight() const noexcept { return in_flight_; }
  //! @brief Of the request that is the `ahead`-th from now.
  [[nodiscard]] std::uint16_t sequence(std::uint32_t ahead) const noexcept { return (next_ + ahead) & 0xfffu; }

  void posted(Place place) noexcept {
    at(next_++) = place;
    ++in_flight_;
  }
  //! @brief The place of the request with that sequence; kNowhere when it has ended before.
  [[nodiscard]] Place ended(std::uint16_t sequence) noexcept {
    std::uint32_t const age = (sequence - oldest_) & 0xfffu;
    if (age >= next_ - oldest_) return kNowhere;
    Place const place = at(oldest_ + age);
    if (place == kNowhere) return kNowhere;
    at(oldest_ + age) = kNowhere;
    --in_flight_;
    while (oldest_ != next_ && at(oldest_) == kNowhere) ++oldest_;
    return place;
  }

 private:
  [[nodiscard]] Place& at(std::uint32_t number) noexcept { return places_[number & (places_.size() - 1)]; }

  std::uint32_t depth_;
  std::vector<Place> places_;
  std::uint32_t oldest_ = 0, next_ = 0, in_flight_ = 0;  // numbers, of which a sequence is the low 12 bits
};

struct QueuePair {
  explicit QueuePair(int depth) : window(depth) {}
  PlaceQueue waiting;
  Window window;
};

}  // namespace mori_ep::fabric::proxy
