// SPDX-License-Identifier: MIT
//! @file Where all ranks meet before a timed phase, be they threads of one process or processes that share memory.
#pragma once

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace ep_bench {

//! @brief Why a meeting is over: who gave up, with which exit code.
struct Complaint {
  int rank = 0;
  int witness = -1;  //!< the rank that says so of another, which cannot; -1: it says so itself
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
  void complain(const Complaint& what) noexcept {
    std::uint32_t going = kGoing;
    if (!state_.compare_exchange_strong(going, kWriting)) return;
    rank_ = what.rank;
    witness_ = what.witness;
    exit_code_ = what.exit_code;
    std::memcpy(text_, what.text.data(), std::min(what.text.size(), sizeof(text_) - 1));
    state_.store(kWritten);
    ring();
  }
  //! @brief Once over(): what was complained of.
  [[nodiscard]] Complaint complaint() const {
    for (int i = 0; i < 1000 && state_.load() == kWriting; ++i) ::usleep(1000);  // its writer may have been killed
    if (state_.load() != kWritten) return {.rank = 0, .witness = -1, .exit_code = 1, .text = "a rank has ended"};
    return {.rank = rank_, .witness = witness_, .exit_code = exit_code_, .text = text_};
  }
  void ring() noexcept {
    bell.fetch_add(1);
    (void)::syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  //! @brief Sleeps until the bell has rung since it was `heard`, at most a while.
  void listen(std::uint32_t heard) noexcept {
    timespec const slice{.tv_sec = 0, .tv_nsec = 100'000'000};
    (void)::syscall(SYS_futex, &bell, FUTEX_WAIT, heard, &slice, nullptr, 0);
  }

 private:
  static constexpr std::uint32_t kGoing = 0, kWriting = 1, kWritten = 2;
  std::atomic<std::uint32_t> state_{kGoing};
  int rank_ = 0, witness_ = -1, exit_code_ = 0;
  char text_[2048] = "";
};
static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "futex(2) waits on the value itself");

//! @brief One rank's part in a reusable barrier that takes no time from ranks still at work, and lets all start
//!        together.
//!
//! Early ranks sleep until the last one has come: spinning, they would take their share of the cores from it. Then all
//! spin, yielding, until everybody is awake, so that waking up is not part of what is timed. It has no deadline: where
//! ranks are processes, a PeerWatch complains of one that will not come.
class Meeting {
 public:
  Meeting(MeetingBoard& board, int rank, int parties)
      : board_(board), rank_(rank), parties_(static_cast<std::uint64_t>(parties)) {}

  //! @brief True when all have come; false when somebody has given up, or was complained of, for everybody and for ever.
  [[nodiscard]] bool wait() {
    all_ += parties_;
    if (board_.arrived.fetch_add(1) + 1 == all_) board_.ring();
    for (;;) {
      std::uint32_t const heard = board_.bell.load();
      if (board_.arrived.load() >= all_ || board_.over()) break;
      board_.listen(heard);
    }
    board_.awake.fetch_add(1);
    while (board_.awake.load() < all_ && !board_.over()) std::this_thread::yield();
    return !board_.over();
  }
  void give_up(std::string_view why, int exit_code = 1) {
    board_.complain({.rank = rank_, .witness = -1, .exit_code = exit_code, .text = std::string(why)});
  }
  [[nodiscard]] Complaint complaint() const { return board_.complaint(); }

 private:
  MeetingBoard& board_;
  int rank_;
  std::uint64_t parties_, all_ = 0;
};

}  // namespace ep_bench
