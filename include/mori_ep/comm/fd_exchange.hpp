// SPDX-License-Identifier: MIT
//! @file File descriptors for memory, passed between the processes of one host.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/link.hpp"
#include "mori_ep/comm/passed_fd.hpp"
#include "mori_ep/comm/random_bytes.hpp"
#include "mori_ep/comm/socket.hpp"

namespace mori_ep::comm {

//! @brief Gives every rank of another process on this host a descriptor of what `mine` is of, over sockets of the
//!        abstract namespace: names without files, which end with their process. A peer must run as the same user and
//!        say a secret that the bootstrap carried.
class FdExchange {
 public:
  FdExchange(const Communicator& comm, std::span<const int> members)
      : FdExchange(comm, members, Deadline(comm.timeout())) {}
  FdExchange(const Communicator& comm, std::span<const int> members, const Deadline& deadline)
      : comm_(comm), members_(members), deadline_(deadline) {}

  //! @brief Collective among the members. The result's entry i is open where member i is in another process. Errors:
  //!        missing_rank, system_error.
  Result<std::vector<Fd>> run(const Fd& mine) {
    std::size_t const count = members_.size();
    Mailbox here;
    Fd listener;
    Status status = open(listener, here);
    std::vector<Mailbox> boxes(count);
    if (Status s = comm_.all_gather(members_, &here, boxes.data(), sizeof(here), deadline_.left()); !s.ok()) return s;
    for (std::size_t i = 0; i < count; ++i)
      if (boxes[i].open == 0)
        return status.ok() ? Error{.code = Errc::missing_rank,
                                   .phase = Phase::create,
                                   .rank = comm_.rank(),
                                   .peer = members_[i],
                                   .hint = "It has no socket to pass memory through; its own error says why."}
                           : failed(status.error(), -1);
    // A connection waits in the peer's queue, so that all can be made before any is served.
    std::vector<Fd> ask(count), got(count);
    int unserved = 0, unanswered = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (comm_.in_process(members_[i])) continue;
      auto link = connect(boxes[i], listener);
      if (!link.ok()) {
        auto const number = link.error().value;
        bool const ended = number == ECONNREFUSED || number == ECONNRESET || number == EPIPE;
        return ended ? absent(members_[i]) : failed(link.error(), members_[i]);
      }
      ask[i] = std::move(*link);
      ++unserved;
      ++unanswered;
    }
    while (unserved > 0 || unanswered > 0) {
      accept_guests(listener);
      for (auto& guest : guests_.waiting()) unserved -= serve(guest.link.socket, here, mine) ? 1 : 0;
      guests_.forget_closed();
      for (std::size_t i = 0; i < count; ++i) {
        Fd& link = ask[i];
        if (!link.open()) continue;
        TakenFd const answer = take_fd(link, got[i]);
        if (answer == TakenFd::none) continue;
        if (answer == TakenFd::ended) return absent(members_[i]);
        if (answer == TakenFd::no_descriptor) return failed(accept_error(), members_[i]);
        link.close();
        --unanswered;
      }
      if (unserved == 0 && unanswered == 0) break;
      if (deadline_.passed()) {
        if (guests_.was_exhausted()) return failed(accept_error(), -1);
        for (std::size_t i = 0; i < count; ++i)
          if (ask[i].open()) return absent(members_[i]);
        return absent(-1);
      }
      std::vector<pollfd> ready;
      guests_.wait_for(ready, {&listener, 1});
      for (const Fd& a : ask)
        if (a.open()) ready.push_back({.fd = a.get(), .events = POLLIN, .revents = 0});
      (void)::poll(ready.data(), static_cast<nfds_t>(ready.size()), deadline_.left_ms(guests_.most_ms()));
    }
    return Result<std::vector<Fd>>(std::move(got));
  }

 private:
  using Secret = std::array<std::byte, 16>;
  //! Where a rank can be asked, and what one must say there. Plain data.
  struct Mailbox {
    std::array<char, 40> name{};
    Secret secret{};
    std::int32_t open = 0;
  };

  Status open(Fd& listener, Mailbox& box) {
    std::array<std::byte, 32> name{};
    if (Status s = draw(name); !s.ok()) return s;
    if (Status s = draw(box.secret); !s.ok()) return s;
    constexpr char kHex[] = "0123456789abcdef";
    std::memcpy(box.name.data(), "mori_ep.", 8);
    for (std::size_t i = 0; i < name.size(); ++i) box.name[8 + i] = kHex[std::to_integer<int>(name[i]) % 16];
    listener = Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    auto const [address, length] = address_of(box);
    if (!listener.open() || ::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
        ::listen(listener.get(), static_cast<int>(members_.size())) != 0)
      return system_error("socket for passing memory", errno, "Are there file descriptors left (ulimit -n)?");
    box.open = 1;
    return {};
  }
  static std::pair<sockaddr_un, socklen_t> address_of(const Mailbox& box) noexcept {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, box.name.data(), box.name.size());
    return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + box.name.size())};
  }
  void accept_guests(const Fd& listener) {
    guests_.accept(
        listener, [] { return false; }, &of_this_user);
  }
  static bool of_this_user(const Fd& link) noexcept {
    ucred user{};
    socklen_t length = sizeof(user);
    return ::getsockopt(link.get(), SOL_SOCKET, SO_PEERCRED, &user, &length) == 0 && user.uid == ::geteuid();
  }
  Result<Fd> connect(const Mailbox& box, const Fd& listener) {
    auto const [address, length] = address_of(box);
    for (;;) {
      Fd link(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!link.open()) return system_error("socket", errno, "Are there file descriptors left (ulimit -n)?");
      if (::connect(link.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) {
        if (::send(link.get(), box.secret.data(), box.secret.size(), MSG_NOSIGNAL) < 0)
          return system_error("send", errno, "Has the peer's process ended?");
        return Result<Fd>(std::move(link));
      }
      if (errno != EAGAIN || deadline_.passed())
        return system_error("connect", errno, "Is the peer in this network namespace, and alive?");
      // Its queue is full, perhaps of strangers. So may be this one's: no rank would get on if none emptied its own.
      accept_guests(listener);
      (void)::poll(nullptr, 0, deadline_.left_ms(5));
    }
  }
  //! True when the guest has got its descriptor; a stranger is let go.
  static bool serve(Fd& guest, const Mailbox& here, const Fd& mine) {
    Secret said;
    auto const n = ::recv(guest.get(), said.data(), said.size(), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
    bool const ours = n == static_cast<ssize_t>(said.size()) && said == here.secret;
    bool const sent = ours && send_fd(guest, mine);
    guest.close();
    return sent;
  }
  Error failed(Error error, int peer) const noexcept {
    error.phase = Phase::create;
    error.rank = comm_.rank();
    error.peer = peer;
    return error;
  }
  Error absent(int rank) const noexcept {
    return Error{.code = Errc::missing_rank,
                 .phase = Phase::create,
                 .rank = comm_.rank(),
                 .peer = rank,
                 .hint = "It does not pass its memory. Has its process ended, or does it run as another user?"};
  }

  const Communicator& comm_;
  std::span<const int> members_;
  Deadline deadline_;
  Guests guests_;
};

}  // namespace mori_ep::comm
