// SPDX-License-Identifier: MIT
//! @file Luck that a seed decides.
#pragma once

#include <chrono>
#include <cstdint>

namespace mori_ep::fabric::loopback {

//! @brief splitmix64.
class Luck {
 public:
  explicit Luck(std::uint64_t seed) noexcept : state_(seed) {}

  //! @brief One of [0, n).
  std::uint64_t below(std::uint64_t n) noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) % n;
  }
  //! @brief Never when n is 0.
  bool one_in(int n) noexcept { return n > 0 && below(static_cast<std::uint64_t>(n)) == 0; }
  std::chrono::nanoseconds between(std::chrono::nanoseconds least, std::chrono::nanoseconds most) noexcept {
    auto const span = static_cast<std::uint64_t>((most - least).count());
    return least + std::chrono::nanoseconds(static_cast<std::int64_t>(below(span + 1)));
  }

 private:
  std::uint64_t state_;
};

}  // namespace mori_ep::fabric::loopback
