// SPDX-License-Identifier: MIT
//! @file Bootstrap among threads of one process.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "mori_ep/comm/bootstrap.hpp"

namespace mori_ep::comm {

//! @brief The meeting place of a world's threads: rounds in which everybody puts, then everybody takes.
//!
//! A round that somebody does not reach in time is broken for all, also for whoever comes to it later.
class ThreadHub {
 public:
  ThreadHub(int world, std::chrono::nanoseconds timeout)
      : timeout_(std::min(timeout, kLongest)),
        put_(static_cast<std::size_t>(world), 0),
        taken_(put_.size(), 0),
        data_(put_.size()) {}

  [[nodiscard]] int world() const noexcept { return static_cast<int>(put_.size()); }

  Status exchange(int rank, const void* send, void* recv, std::size_t bytes) {
    std::unique_lock lock(mutex_);
    auto const me = static_cast<std::size_t>(rank);
    auto const round = ++put_[me];
    data_[me].assign(static_cast<const std::byte*>(send), static_cast<const std::byte*>(send) + bytes);
    changed_.notify_all();
    auto const deadline = std::chrono::steady_clock::now() + timeout_;
    if (Status met = meet(lock, put_, round, deadline, rank); !met.ok()) return met;
    Status result;
    for (std::size_t peer = 0; peer < data_.size(); ++peer) {
      if (data_[peer].size() == bytes) {
        if (bytes != 0) std::memcpy(static_cast<std::byte*>(recv) + peer * bytes, data_[peer].data(), bytes);
      } else if (result.ok()) {
        result = Error{.code = Errc::protocol_mismatch,
                       .rank = rank,
                       .peer = static_cast<int>(peer),
                       .field = "exchanged bytes",
                       .value = static_cast<std::int64_t>(data_[peer].size()),
                       .limit = static_cast<std::int64_t>(bytes),
                       .hint = "Every rank must make the same collective calls in the same order."};
      }
    }
    // Nobody may put the next round's data before everybody has taken this round's.
    taken_[me] = round;
    changed_.notify_all();
    if (Status met = meet(lock, taken_, round, deadline, rank); !met.ok()) return met;
    return result;
  }

 private:
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 11);  // a clock can add it

  Status meet(std::unique_lock<std::mutex>& lock, const std::vector<std::uint64_t>& counts, std::uint64_t round,
              std::chrono::steady_clock::time_point deadline, int rank) {
    for (std::size_t peer = 0; peer < counts.size(); ++peer) {
      bool const came =
          changed_.wait_until(lock, deadline, [&] { return round <= broken_round_ || counts[peer] >= round; });
      if (!came) {
        broken_round_ = round;
        broken_by_ = static_cast<int>(peer);
        changed_.notify_all();
      }
      if (round <= broken_round_) {
        // Whoever comes late, or was behind, joins the others in the round after the broken one.
        put_[static_cast<std::size_t>(rank)] = taken_[static_cast<std::size_t>(rank)] = broken_round_;
        return Error{.code = Errc::missing_rank,
                     .phase = Phase::barrier,
                     .rank = rank,
                     .peer = broken_by_,
                     .hint = "Every rank of the world must make this call in time. Is the peer alive?"};
      }
    }
    return {};
  }

  std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::uint64_t> put_, taken_;  // rounds, by rank
  std::vector<std::vector<std::byte>> data_;
  std::uint64_t broken_round_ = 0;
  int broken_by_ = -1;
};

//! @brief One thread's end of a ThreadHub.
class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(std::shared_ptr<ThreadHub> hub, int rank) noexcept : hub_(std::move(hub)), rank_(rank) {}
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int world() const noexcept override { return hub_->world(); }
  Status all_gather(const void* send, void* recv, std::size_t bytes) noexcept override {
    return hub_->exchange(rank_, send, recv, bytes);
  }
  Status barrier() noexcept override { return hub_->exchange(rank_, nullptr, nullptr, 0); }

 private:
  std::shared_ptr<ThreadHub> hub_;
  int rank_;
};

}  // namespace mori_ep::comm
