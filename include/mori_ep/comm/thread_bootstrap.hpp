// SPDX-License-Identifier: MIT
//! @file Bootstrap among threads of one process.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "mori_ep/comm/bootstrap.hpp"

namespace mori_ep::comm {

//! @brief The meeting place of a world's threads: rounds in which everybody puts, then everybody takes.
//!
//! Each set of members has rounds of its own. A round that somebody does not reach in time is broken for all, also for
//! whoever comes to it later.
class ThreadHub {
 public:
  ThreadHub(int world, std::chrono::nanoseconds timeout) : world_(world), timeout_(std::min(timeout, kLongest)) {}

  [[nodiscard]] int world() const noexcept { return world_; }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept { return timeout_; }

  //! @brief `me` is the place in `members` of the rank that calls.
  Status exchange(std::span<const int> members, std::size_t me, const void* send, void* recv, std::size_t bytes,
                  std::chrono::nanoseconds within) {
    std::unique_lock lock(mutex_);
    Meeting& meeting = meetings_[std::vector<int>(members.begin(), members.end())];
    meeting.grow(members.size());
    auto const round = ++meeting.put[me];
    meeting.data[me].assign(static_cast<const std::byte*>(send), static_cast<const std::byte*>(send) + bytes);
    changed_.notify_all();
    auto const deadline = std::chrono::steady_clock::now() + std::min(within, kLongest);
    if (Status met = meet(lock, meeting, meeting.put, round, deadline, members, me); !met.ok()) return met;
    Status result;
    for (std::size_t peer = 0; peer < members.size(); ++peer) {
      const std::vector<std::byte>& data = meeting.data[peer];
      if (data.size() == bytes) {
        if (bytes != 0) std::memcpy(static_cast<std::byte*>(recv) + peer * bytes, data.data(), bytes);
      } else if (result.ok()) {
        result = different_calls(members[me], members[peer], data.size(), bytes);
      }
    }
    // Nobody may put the next round's data before everybody has taken this round's.
    meeting.taken[me] = round;
    changed_.notify_all();
    if (Status met = meet(lock, meeting, meeting.taken, round, deadline, members, me); !met.ok()) return met;
    return result;
  }

 private:
  static constexpr std::chrono::nanoseconds kLongest = std::chrono::hours(24 * 11);  // a clock can add it

  struct Meeting {
    std::vector<std::uint64_t> put, taken;  // rounds, by place
    std::vector<std::vector<std::byte>> data;
    std::uint64_t broken_round = 0;
    std::vector<int> broken_by;

    void grow(std::size_t members) {
      put.resize(members, 0);
      taken.resize(members, 0);
      data.resize(members);
    }
  };

  Status meet(std::unique_lock<std::mutex>& lock, Meeting& meeting, const std::vector<std::uint64_t>& counts,
              std::uint64_t round, std::chrono::steady_clock::time_point deadline, std::span<const int> members,
              std::size_t me) {
    auto const here = [&](std::size_t peer) { return counts[peer] >= round; };
    for (std::size_t peer = 0; peer < members.size(); ++peer) {
      bool const came =
          changed_.wait_until(lock, deadline, [&] { return round <= meeting.broken_round || here(peer); });
      if (!came) {
        meeting.broken_round = round;
        meeting.broken_by.clear();
        for (std::size_t p = 0; p < members.size(); ++p)
          if (!here(p)) meeting.broken_by.push_back(members[p]);
        changed_.notify_all();
      }
      if (round <= meeting.broken_round) {
        // Whoever comes late, or was behind, joins the others in the round after the broken one.
        meeting.put[me] = meeting.taken[me] = meeting.broken_round;
        return missing(members[me], meeting.broken_by);
      }
    }
    return {};
  }

  int world_;
  std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::vector<int>, Meeting> meetings_;
};

//! @brief One thread's end of a ThreadHub.
class ThreadBootstrap final : public Bootstrap {
 public:
  ThreadBootstrap(std::shared_ptr<ThreadHub> hub, int rank) noexcept : hub_(std::move(hub)), rank_(rank) {}
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int world() const noexcept override { return hub_->world(); }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept override { return hub_->timeout(); }
  using Bootstrap::all_gather;
  Status all_gather(std::span<const int> members, const void* send, void* recv, std::size_t bytes,
                    std::chrono::nanoseconds within) noexcept override {
    auto const me = place_of(members, rank_, hub_->world());
    if (!me.ok()) return me.status();
    return hub_->exchange(members, *me, send, recv, bytes, within);
  }

 private:
  std::shared_ptr<ThreadHub> hub_;
  int rank_;
};

}  // namespace mori_ep::comm
