// SPDX-License-Identifier: MIT
//! @file Whether the other ranks' processes live: one that has ended, or stands still, ends the run for all.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "meeting.hpp"
#include "mori_ep/mori_ep.hpp"

namespace ep_bench {

//! @brief Tells which peers' processes have ended: each holds the end of a pipe that closes with it.
class Lifelines {
 public:
  //! @brief Collective.
  [[nodiscard]] static mori_ep::Result<Lifelines> join(const mori_ep::Communicator& comm);
  [[nodiscard]] bool ended(int rank) const;

 private:
  mori_ep::comm::Fd held_;
  std::vector<mori_ep::comm::Fd> of_rank_;
};

//! @brief One rank's signs of life, in memory that all see.
struct alignas(64) Pulse {
  std::atomic<std::uint64_t> beats{0};
  std::atomic<int> process{0};
  std::atomic<bool> done{false};  //!< its part is over, and its process may end
};

//! @brief From its making to its end, a thread that gives this rank's signs of life and looks for the others'.
//!
//! A rank that measures alone or verifies is slow but lives, so what is judged is not when it comes to a meeting but this
//! thread's beat: it stops only with the process (SIGSTOP, a debugger, a freezer). Time in which the judge itself stood
//! still does not count against others, so a job that is stopped and continued as a whole goes on.
class PeerWatch {
 public:
  //! @brief Called when the run is over and this rank's own thread has not come out of it: to end the process.
  using Leave = std::function<void(const Complaint&)>;

  //! @param boards where ranks meet; a complaint at the first ends the run, and is then brought to all
  //! @param patience how long a rank may give no sign of life
  PeerWatch(int rank, std::span<Pulse> pulses, std::span<MeetingBoard> boards, Lifelines lifelines,
            std::chrono::nanoseconds patience, Leave leave);
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;
  ~PeerWatch();

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBeat{100}, kShortestPatience{500}, kToComeOut{400};

  void watch();
  [[nodiscard]] std::optional<Complaint> look(std::chrono::nanoseconds since_last);
  //! True when this rank's part ends meanwhile.
  [[nodiscard]] bool done_within(std::chrono::nanoseconds time);

  int rank_;
  std::span<Pulse> pulses_;
  std::span<MeetingBoard> boards_;
  Lifelines lifelines_;
  std::chrono::nanoseconds patience_;
  Leave leave_;
  std::vector<std::uint64_t> heard_;              // beats, at the last look
  std::vector<std::chrono::nanoseconds> silent_;  // since then
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace ep_bench
