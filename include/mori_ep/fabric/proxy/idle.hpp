// SPDX-License-Identifier: MIT
//! @file What a proxy does while there is nothing to do.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "mori_ep/exec/host/context.hpp"

namespace mori_ep::fabric::proxy {

//! @brief Spins a little, for a command that comes at once; gives the core away; then sleeps longer and longer, up to a
//!        bound: ranks share cores with their proxies.
class Idle {
 public:
  explicit Idle(std::chrono::microseconds longest_sleep) noexcept : longest_(longest_sleep) {}

  void reset() noexcept { rounds_ = 0; }
  void pause() {
    ++rounds_;
    if (rounds_ <= kSpins) return exec::host::pause_cpu();
    if (rounds_ <= kSpins + kYields) return std::this_thread::yield();
    int const doublings = std::min(rounds_ - kSpins - kYields, kDoublings);
    std::this_thread::sleep_for(std::min(longest_, std::chrono::microseconds(1 << doublings)));
    rounds_ = std::min(rounds_, kSpins + kYields + kDoublings);
  }

 private:
  static constexpr int kSpins = 64, kYields = 128, kDoublings = 16;
  std::chrono::microseconds longest_;
  int rounds_ = 0;
};

}  // namespace mori_ep::fabric::proxy
