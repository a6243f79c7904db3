// SPDX-License-Identifier: MIT
//! @file Where all ranks meet before a timed phase, be they threads of one process or processes that share memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "stats.hpp"

namespace ep_bench {

//! @brief Why a meeting is over: who gave up, with which exit code.
struct Complaint {
  int rank = 0;
  int exit_code = 0;
  std::string text;
};

//! @brief What the ranks of a meeting share, in memory that all of them see.
class MeetingBoard {
 public:
  std::atomic<std::uint64_t> arrived{0}, awake{0};
  std::atomic<std::uint32_t> bell{0};  //!< rung when all have arrived, or somebody has given up

  [[nodiscard]] bool over() const noexcept { return state_.load() != kGoing; }
  //! @brief The first complaint stays.
  void complain(int rank, int exit_code, std::string_view text) noexcept {
    std::uint32_t going = kGoing;
    if (!state_.compare_exchange_strong(going, kWriting)) return;
    rank_ = rank;
    exit_code_ = exit_code;
    std::memcpy(text_, text.data(), std::min(text.size(), sizeof(text_) - 1));
    state_.store(kWritten);
    ring();
  }
  //! @brief Once over(): what was complained of.
  [[nodiscard]] Complaint complaint() const {
    for (int i = 0; i < 1000 && state_.load() == kWriting; ++i) ::usleep(1000);  // its writer may have been killed
    if (state_.load() != kWritten) return {.rank = 0, .exit_code = 1, .text = "a rank has ended"};
    return {.rank = rank_, .exit_code = exit_code_, .text = text_};
  }
  void ring() noexcept {
    bell.fetch_add(1);
    (void)::syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  //! @brief Sleeps until the bell has rung since it was `heard`, or 0.1 s. False when those are over.
  [[nodiscard]] bool listen(std::uint32_t heard) noexcept {
    timespec const slice{.tv_sec = 0, .tv_nsec = 100'000'000};
    return ::syscall(SYS_futex, &bell, FUTEX_WAIT, heard, &slice, nullptr, 0) == 0 || errno != ETIMEDOUT;
  }

 private:
  static constexpr std::uint32_t kGoing = 0, kWriting = 1, kWritten = 2;
  std::atomic<std::uint32_t> state_{kGoing};
  int rank_ = 0, exit_code_ = 0;
  char text_[2048] = "";
};
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "futex(2) waits on the value itself");

//! @brief One rank's part in a reusable barrier that takes no time from ranks still at work, and lets all start
//!        together.
//!
//! Early ranks sleep until the last one has come: spinning, they would take their share of the cores from it. Then all
//! spin, yielding, until everybody is awake, so that waking up is not part of what is timed.
class Meeting {
 public:
  //! @brief A rank whose process has ended, or -1.
  using Watch = std::function<int()>;

  Meeting(MeetingBoard& board, int rank, int parties, Watch ended = {})
      : board_(board), rank_(rank), parties_(static_cast<std::uint64_t>(parties)), ended_(std::move(ended)) {}

  //! @brief True when all have come; false when somebody has given up or ended, for everybody and for ever.
  [[nodiscard]] bool wait() {
    all_ += parties_;
    auto const all_arrived = [&] { return board_.arrived.load() >= all_; };
    auto const all_awake = [&] { return board_.awake.load() >= all_; };
    if (board_.arrived.fetch_add(1) + 1 == all_) board_.ring();
    for (;;) {
      std::uint32_t const heard = board_.bell.load();
      if (all_arrived() || board_.over()) break;
      if (!board_.listen(heard)) look_for_ended(all_arrived);
    }
    board_.awake.fetch_add(1);
    double look_at = now_us() + kLookUs;
    while (!all_awake() && !board_.over()) {
      std::this_thread::yield();
      if (now_us() < look_at) continue;
      look_for_ended(all_awake);
      look_at += kLookUs;
    }
    return !board_.over();
  }
  void give_up(std::string_view why, int exit_code = 1) { board_.complain(rank_, exit_code, why); }
  [[nodiscard]] Complaint complaint() const { return board_.complaint(); }

 private:
  static constexpr double kLookUs = 1e5;

  //! A rank may end once it has met the others: `met` tells whether it has.
  template <class Met>
  void look_for_ended(Met&& met) {
    int const rank = ended_ ? ended_() : -1;
    if (rank >= 0 && !met()) board_.complain(rank, 1, "rank " + std::to_string(rank) + ": its process has ended");
  }

  MeetingBoard& board_;
  int rank_;
  std::uint64_t parties_, all_ = 0;
  Watch ended_;
};

}  // namespace ep_bench
