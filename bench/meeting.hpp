// SPDX-License-Identifier: MIT
//! @file Where the threads of all ranks meet before a timed phase.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace ep_bench {

//! @brief A reusable barrier that takes no time from ranks still at work, and lets all start together.
//!
//! Early ranks sleep until the last one has come: spinning, they would take their share of the cores from it. Then all
//! spin, yielding, until everybody is awake, so that waking up is not part of what is timed.
class Meeting {
 public:
  explicit Meeting(int parties) : parties_(static_cast<std::uint64_t>(parties)) {}

  //! @brief True when all have come; false when somebody has given up, for everybody and for ever.
  [[nodiscard]] bool wait() {
    std::uint64_t all_awake;
    {
      std::unique_lock lock(mutex_);
      std::uint64_t const turn = turn_;
      all_awake = parties_ * (turn + 1);
      if (++arrived_ == all_awake) {
        ++turn_;
        changed_.notify_all();
      }
      changed_.wait(lock, [&] { return turn_ > turn || failed_; });
    }
    awake_.fetch_add(1);
    while (awake_.load() < all_awake && !failed_) std::this_thread::yield();
    return !failed_;
  }
  void give_up() {
    std::lock_guard lock(mutex_);
    failed_ = true;
    changed_.notify_all();
  }

 private:
  std::uint64_t const parties_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t arrived_ = 0, turn_ = 0;
  std::atomic<std::uint64_t> awake_{0};
  std::atomic<bool> failed_{false};
};

}  // namespace ep_bench
