// SPDX-License-Identifier: MIT
//! @file Connections, and those that somebody unknown has made.
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>
#include <vector>

#include <poll.h>

#include "mori_ep/comm/frame.hpp"
#include "mori_ep/comm/socket.hpp"

namespace mori_ep::comm {

//! @brief A connection and what it has brought that nobody took yet.
struct Link {
  Fd socket;
  FrameReader reader;

  [[nodiscard]] bool open() const noexcept { return socket.open(); }
};

//! @brief Those that have connected and have not said yet who they are; perhaps strangers.
class Guests {
 public:
  struct Guest {
    explicit Guest(Fd socket) noexcept : link{std::move(socket), {}} {}

    Link link;
    Deadline patience{std::chrono::milliseconds(200)};  //!< the time that a rank's greeting takes to follow
  };

  //! @brief Takes in some of those that wait, so that they can speak before more come. Where there is no room, or no
  //!        descriptor and `spare()` frees none, the one that has said nothing for longest gives way once it had its
  //!        time. `admits(socket)` says who may stay.
  template <class Spare, class Admits>
  void accept(const Fd& listener, Spare&& spare, Admits&& admits) {
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
      Accepted next = accept_one(listener);
      exhausted_ = next.exhausted;
      was_exhausted_ = was_exhausted_ || exhausted_;
      if (exhausted_ && (spare() || drop_silent())) next = accept_one(listener);
      if (!next.socket.open()) return;
      if (admits(next.socket)) waiting_.emplace_back(std::move(next.socket));
      if (waiting_.size() > kMost) waiting_.erase(waiting_.begin());
    }
  }
  //! @brief In the order in which they came. A closed one is gone with forget_closed().
  [[nodiscard]] std::vector<Guest>& waiting() noexcept { return waiting_; }
  void forget_closed() {
    std::erase_if(waiting_, [](const Guest& g) { return !g.link.open(); });
  }

  //! @brief Somebody waits for whom there is no descriptor, now or at some time.
  [[nodiscard]] bool exhausted() const noexcept { return exhausted_; }
  [[nodiscard]] bool was_exhausted() const noexcept { return was_exhausted_; }
  //! @brief For poll(): what to wait for, and how long at most.
  void wait_for(std::vector<pollfd>& ready, std::span<const Fd> listeners) const {
    for (const Fd& listener : listeners)  // who waits without a descriptor would end every wait at once
      if (!exhausted_) ready.push_back({.fd = listener.get(), .events = POLLIN, .revents = 0});
    for (const Guest& g : waiting_) ready.push_back({.fd = g.link.socket.get(), .events = POLLIN, .revents = 0});
  }
  [[nodiscard]] int most_ms() const noexcept { return exhausted_ ? 20 : 1000; }

 private:
  static constexpr std::size_t kMost = 4096;
  static constexpr int kAcceptedAtOnce = 64;

  bool drop_silent() {
    if (waiting_.empty() || !waiting_.front().patience.passed()) return false;
    waiting_.erase(waiting_.begin());
    return true;
  }

  std::vector<Guest> waiting_;
  bool exhausted_ = false, was_exhausted_ = false;
};

}  // namespace mori_ep::comm
