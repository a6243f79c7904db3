// SPDX-License-Identifier: MIT
#include "peer_watch.hpp"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "mori_ep/comm/fd_exchange.hpp"

namespace ep_bench {

using mori_ep::comm::Fd;
using std::chrono::nanoseconds;

mori_ep::Result<Lifelines> Lifelines::join(const mori_ep::Communicator& comm) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return mori_ep::comm::system_error("pipe2");
  Fd const watched(ends[0]);
  Lifelines lines;
  lines.held_ = Fd(ends[1]);
  std::vector<int> const everyone = mori_ep::comm::all_ranks(comm.world());
  auto got = mori_ep::comm::FdExchange(comm, everyone).run(watched);
  if (!got.ok()) return got.status();
  lines.of_rank_ = std::move(*got);
  return mori_ep::Result<Lifelines>(std::move(lines));
}

bool Lifelines::ended(int rank) const {
  pollfd line{.fd = of_rank_[static_cast<std::size_t>(rank)].get(), .events = 0, .revents = 0};
  return ::poll(&line, 1, 0) > 0 && (line.revents & POLLHUP) != 0;
}

PeerWatch::PeerWatch(int rank, std::span<Pulse> pulses, std::span<MeetingBoard> boards, Lifelines lifelines,
                     nanoseconds patience, Leave leave)
    : rank_(rank),
      pulses_(pulses),
      boards_(boards),
      lifelines_(std::move(lifelines)),
      patience_(std::max<nanoseconds>(patience, kShortestPatience)),
      leave_(std::move(leave)),
      heard_(pulses.size()),
      silent_(pulses.size()) {
  pulses_[static_cast<std::size_t>(rank_)].process = ::getpid();
  thread_ = std::thread([this] { watch(); });
}

PeerWatch::~PeerWatch() {
  {
    std::lock_guard const lock(mutex_);
    done_ = true;
  }
  changed_.notify_one();
  thread_.join();
  pulses_[static_cast<std::size_t>(rank_)].done = true;
}

bool PeerWatch::done_within(nanoseconds time) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, time, [&] { return done_; });
}

void PeerWatch::watch() {
  auto last = Clock::now();
  while (!boards_[0].over()) {
    if (done_within(kBeat)) return;
    pulses_[static_cast<std::size_t>(rank_)].beats.fetch_add(1);
    auto const now = Clock::now();
    if (auto const dead = look(now - std::exchange(last, now)); dead && !boards_[0].over()) boards_[0].complain(*dead);
  }
  Complaint const complaint = boards_[0].complaint();
  for (MeetingBoard& board : boards_) board.complain(complaint);
  // At a meeting its thread hears of it at once. In a wait of the library, or at work alone, it may not for long.
  if (!done_within(kToComeOut)) leave_(complaint);
}

std::optional<Complaint> PeerWatch::look(nanoseconds since_last) {
  for (std::size_t r = 0; r < pulses_.size(); ++r) {
    std::string const who = "rank " + std::to_string(r);
    Complaint complaint{.rank = static_cast<int>(r), .witness = rank_, .exit_code = 1, .text = ""};
    bool const ended = lifelines_.ended(complaint.rank);
    if (complaint.rank == rank_ || pulses_[r].done) continue;  // asked after `ended`: it says so first
    if (ended) {
      complaint.text = who + ": its process has ended";
      return complaint;
    }
    auto const beats = pulses_[r].beats.load();
    silent_[r] += std::min(since_last, patience_ / 2);
    if (std::exchange(heard_[r], beats) != beats) silent_[r] = nanoseconds(0);
    if (silent_[r] < patience_) continue;
    char seconds[32];
    std::snprintf(seconds, sizeof(seconds), "%.1f", std::chrono::duration<double>(silent_[r]).count());
    complaint.text = who + ": process " + std::to_string(pulses_[r].process) + " has given no sign of life for " +
                     seconds + " s. Is it stopped? Continue it in time (kill -CONT), or raise MORI_BOOTSTRAP_TIMEOUT.";
    return complaint;
  }
  return {};
}

}  // namespace ep_bench
