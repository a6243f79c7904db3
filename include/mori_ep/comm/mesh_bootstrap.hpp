// SPDX-License-Identifier: MIT
//! @file Bootstrap among processes that have a connection to each other, a stream socket for each pair.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "mori_ep/comm/bootstrap.hpp"
#include "mori_ep/comm/frame.hpp"
#include "mori_ep/comm/link.hpp"
#include "mori_ep/comm/socket.hpp"

namespace mori_ep::comm {

//! @brief Rounds as in ThreadHub, by messages: everybody sends its bytes to every member, then says that it has
//!        everybody's. So no member ends a round before all have its bytes, and a member that gives up says so in place
//!        of the second message: the round is broken for whoever is still in it, or comes to it later.
//!
//! What orders the rounds: a stream socket keeps a peer's messages in order, every message has its group and round, and
//! a member sends those of round n + 1 only after it has ended round n or given it up.
//!
//! A process that has ended closes its connections, so nobody waits the timeout for it. No thread: bytes move while a
//! call waits, and the system keeps what comes between calls.
class MeshBootstrap final : public Bootstrap {
 public:
  //! @brief `links[r]` is the connection to rank r (none to itself), non-blocking. A peer that has sent more than
  //!        `most_held` bytes before anybody took them is let go.
  MeshBootstrap(int rank, std::vector<Link> links, std::chrono::nanoseconds timeout,
                std::uint64_t most_held = kMostHeld)
      : rank_(rank), timeout_(timeout), most_held_(most_held) {
    for (Link& link : links) peers_.push_back({.link = std::move(link), .unsent = {}, .sent = 0});
  }
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int world() const noexcept override { return static_cast<int>(peers_.size()); }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept override { return timeout_; }

  using Bootstrap::all_gather;
  Status all_gather(std::span<const int> members, const void* send, void* recv, std::size_t bytes,
                    std::chrono::nanoseconds within) noexcept override {
    auto const me = place_of(members, rank_, world());
    if (!me.ok()) return me.status();
    if (bytes > kMostPayload)
      return Error{.code = Errc::invalid_argument,
                   .rank = rank_,
                   .field = "exchanged bytes",
                   .value = static_cast<std::int64_t>(bytes),
                   .limit = static_cast<std::int64_t>(kMostPayload),
                   .hint = "An all-gather is for metadata: send less at once."};
    std::unique_lock lock(mutex_);
    Round round{.members = members, .group = group_number(members), .deadline = Deadline(within), .lock = lock};
    round.number = ++rounds_[round.group];
    auto const* mine = static_cast<const std::byte*>(send);
    if (bytes != 0) std::memcpy(static_cast<std::byte*>(recv) + *me * bytes, mine, bytes);
    tell(round, FrameKind::data, {mine, bytes});
    Status result;
    auto const take_data = [&](std::size_t place, std::span<const std::byte> payload) {
      if (payload.size() == bytes) {
        if (bytes != 0) std::memcpy(static_cast<std::byte*>(recv) + place * bytes, payload.data(), bytes);
      } else if (result.ok() || members[place] < result.error().peer) {  // the lowest, whoever came first
        result = different_calls(rank_, members[place], payload.size(), bytes);
      }
    };
    if (Status s = meet(round, FrameKind::data, take_data); !s.ok()) return s;
    tell(round, FrameKind::taken, {});
    if (Status s = meet(round, FrameKind::taken, [](std::size_t, std::span<const std::byte>) {}); !s.ok()) return s;
    return result;
  }

 private:
  static constexpr int kReadsAtOnce = 4;  // 256 KiB

  struct Peer {
    Link link;
    std::vector<std::byte> unsent;
    std::size_t sent = 0;  //!< of `unsent`: bytes that are on their way

    [[nodiscard]] bool all_sent() const noexcept { return sent == unsent.size(); }
  };
  struct Round {
    std::span<const int> members;
    std::uint64_t group = 0, number = 0;
    Deadline deadline;
    std::unique_lock<std::mutex>& lock;  // not held while this rank waits: another thread may meet another group
  };

  [[nodiscard]] Peer& peer(int rank) noexcept { return peers_[static_cast<std::size_t>(rank)]; }

  void tell(const Round& round, FrameKind kind, std::span<const std::byte> payload) {
    auto const frame = write_frame({.kind = kind, .group = round.group, .round = round.number}, payload);
    for (int member : round.members) {
      Peer& to = peer(member);
      if (member == rank_ || !to.link.open()) continue;
      to.unsent.insert(to.unsent.end(), frame.begin(), frame.end());
      move(to);
    }
  }
  //! Sends and receives what goes without waiting; a connection that is gone is closed. A peer that never ends sending
  //! keeps nobody here, and is let go when it has sent more than anybody may hold.
  void move(Peer& p) const {
    while (p.link.open() && !p.all_sent()) {
      auto const n =
          ::send(p.link.socket.get(), p.unsent.data() + p.sent, p.unsent.size() - p.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      p.sent = n < 0 ? p.unsent.size() : p.sent + static_cast<std::size_t>(n);  // n < 0: nobody will ever read it
    }
    if (p.all_sent()) {
      p.unsent.clear();
      p.sent = 0;
    }
    std::byte buffer[65536];
    for (int reads = 0; p.link.open() && reads < kReadsAtOnce; ++reads) {
      auto const n = ::recv(p.link.socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n <= 0 || !p.link.reader.add({buffer, static_cast<std::size_t>(n)}) || p.link.reader.held() > most_held_)
        p.link.socket.close();
    }
  }

  //! Waits for a frame of `kind` from every member and gives each to `take`; else breaks the round.
  template <class Take>
  Status meet(const Round& round, FrameKind kind, Take&& take) {
    std::vector<int> absent;
    for (int member : round.members)
      if (member != rank_) absent.push_back(member);
    for (bool first = true;; first = false) {
      bool sent = true;  // also to members that are done waiting for: they may wait for this rank's bytes
      for (int member : round.members) {
        if (member == rank_) continue;
        move(peer(member));
        sent = sent && (peer(member).all_sent() || !peer(member).link.open());
      }
      // Also where the member has come: it may have given up since. Whoever slept finds both.
      for (int member : round.members)
        if (member != rank_)
          if (Found const found = look_for_end(peer(member), round); found.broken) return late(round, found);
      std::vector<int> gone;
      for (auto at = absent.begin(); at != absent.end();) {
        auto const place = static_cast<std::size_t>(std::lower_bound(round.members.begin(), round.members.end(), *at) -
                                                    round.members.begin());
        Found const found = look(peer(*at), round, kind, [&](std::span<const std::byte> p) { take(place, p); });
        if (found.broken) return late(round, found);
        if (!found.there && !peer(*at).link.open()) gone.push_back(*at);
        at = found.there ? absent.erase(at) : at + 1;
      }
      if (absent.empty() && sent) return {};
      if (!gone.empty()) return give_up(round, gone);
      if (!first && round.deadline.passed()) {
        for (int member : round.members)
          if (absent.empty() && member != rank_ && !peer(member).all_sent()) return give_up(round, {member});
        return give_up(round, absent);
      }
      wait(round);
    }
  }

  struct Found {
    bool there = false, broken = false;
    std::vector<int> by;  //!< broken: the ranks that did not come to the round
  };
  //! Has a peer given this round up?
  Found look_for_end(const Peer& p, const Round& round) const {
    for (const FrameReader::Frame& frame : p.link.reader.frames()) {
      const FrameHeader& h = frame.header;
      if (h.group == round.group && h.round == round.number && h.kind == FrameKind::broken)
        return {.broken = true, .by = read_broken(frame.payload, world()).value_or(std::vector<int>())};
    }
    return {};
  }
  //! Looks through what a peer has sent for this round's frame. Older frames of the group are of rounds that were given
  //! up; a newer one, when this round's is not there, says that this rank is late.
  template <class Take>
  Found look(Peer& p, const Round& round, FrameKind kind, Take&& take) {
    Found found;
    p.link.reader.take([&](const FrameReader::Frame& frame) {
      const FrameHeader& h = frame.header;
      bool const ours = h.group == round.group && h.kind >= FrameKind::data;
      if (found.there) return false;
      if (ours && h.round == round.number && h.kind == kind) {
        take(frame.payload);
        return found.there = true;
      }
      if (ours && h.round > round.number && !found.broken) {
        auto by = h.kind == FrameKind::broken ? read_broken(frame.payload, world()) : std::nullopt;
        found = {.broken = true, .by = by ? std::move(*by) : std::vector<int>{rank_}};
      }
      return h.kind < FrameKind::data || (ours && h.round < round.number);
    });
    return found;
  }

  //! Joins the others in the round after the last that any of them is known to have given up or ended.
  Status late(const Round& round, const Found& found) {
    std::uint64_t& mine = rounds_[round.group];
    for (int member : round.members) {
      if (member == rank_) continue;
      move(peer(member));
      for (const auto& frame : peer(member).link.reader.frames()) {
        const FrameHeader& h = frame.header;
        if (h.group != round.group || h.kind < FrameKind::data || h.round <= mine) continue;
        mine = h.kind == FrameKind::broken ? h.round : h.round - 1;
      }
    }
    return missing(rank_, found.by);
  }
  Status give_up(const Round& round, const std::vector<int>& absent) {
    ByteWriter ranks;
    for (int r : absent) ranks.put(static_cast<std::int32_t>(r));
    tell(round, FrameKind::broken, ranks.take());
    return missing(rank_, absent);
  }

  void wait(const Round& round) {
    std::vector<pollfd> ready;
    for (int member : round.members) {
      const Peer& p = peer(member);
      if (member != rank_ && p.link.open())
        ready.push_back({.fd = p.link.socket.get(),
                         .events = static_cast<short>(p.all_sent() ? POLLIN : POLLIN | POLLOUT),
                         .revents = 0});
    }
    // What another thread reads meanwhile wakes nobody.
    constexpr int kLookAgainMs = 20;
    round.lock.unlock();
    (void)::poll(ready.data(), static_cast<nfds_t>(ready.size()), round.deadline.left_ms(kLookAgainMs));
    round.lock.lock();
  }

  int rank_;
  std::chrono::nanoseconds timeout_;
  std::uint64_t most_held_;
  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::map<std::uint64_t, std::uint64_t> rounds_;  // by group: the last that this rank came to
};

}  // namespace mori_ep::comm
