// SPDX-License-Identifier: MIT
//! @file Who has something to be done about, each once, in the order in which they came.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mori_ep::fabric::verbs {

//! @brief A queue of numbers below `lanes`, in which each waits at most once.
class Turns {
 public:
  explicit Turns(std::size_t lanes) : ring_(lanes), waits_(lanes, false) {}
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] std::uint32_t front() const noexcept { return ring_[first_]; }
  void push(std::uint32_t lane) noexcept {
    if (std::exchange(waits_[lane], true)) return;
    ring_[(first_ + size_++) % ring_.size()] = lane;
  }
  void pop() noexcept {
    waits_[front()] = false;
    first_ = (first_ + 1) % ring_.size();
    --size_;
  }

 private:
  std::vector<std::uint32_t> ring_;
  std::vector<char> waits_;
  std::size_t first_ = 0, size_ = 0;
};

}  // namespace mori_ep::fabric::verbs
