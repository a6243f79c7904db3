// SPDX-License-Identifier: MIT
//! @file A descriptor as a message over a Unix socket that keeps messages apart (SOCK_SEQPACKET).
#pragma once

#include <cerrno>
#include <cstring>

#include <sys/socket.h>
#include <sys/uio.h>

#include "mori_ep/comm/socket.hpp"

namespace mori_ep::comm {

namespace detail {

//! A message of one byte with room for a descriptor. Points into itself.
struct FdMessage {
  char one = 1;
  iovec data{.iov_base = &one, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  FdMessage() noexcept {
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  FdMessage(const FdMessage&) = delete;
  FdMessage& operator=(const FdMessage&) = delete;
};

}  // namespace detail

//! @brief Sends the other side a descriptor of what `what` is of; false, with errno, when it cannot.
[[nodiscard]] inline bool send_fd(const Fd& link, const Fd& what) noexcept {
  detail::FdMessage parcel;
  cmsghdr* const rights = CMSG_FIRSTHDR(&parcel.message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  int const fd = what.get();
  std::memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  return ::sendmsg(link.get(), &parcel.message, MSG_NOSIGNAL) == 1;
}

//! @brief What a link has brought: nothing yet; a descriptor; its end, or another message; or one for which this process
//!        has no descriptor left.
enum class TakenFd { none, taken, ended, no_descriptor };

namespace detail {
inline TakenFd take_fd_once(const Fd& link, Fd& into) noexcept {
  FdMessage parcel;
  auto const n = ::recvmsg(link.get(), &parcel.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return TakenFd::none;
  const cmsghdr* const rights = n == 1 ? CMSG_FIRSTHDR(&parcel.message) : nullptr;
  if (n == 1 && (parcel.message.msg_flags & MSG_CTRUNC) != 0 && rights == nullptr) return TakenFd::no_descriptor;
  if (rights == nullptr || rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) return TakenFd::ended;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof(fd));
  into = Fd(fd);
  return TakenFd::taken;
}
}  // namespace detail

//! @brief Takes a descriptor without waiting. Linux looks for a message first and for the sender's end second: an end
//!        that it reports may have come between the two, with the message before it. So an end counts when seen twice.
[[nodiscard]] inline TakenFd take_fd(const Fd& link, Fd& into) noexcept {
  TakenFd const taken = detail::take_fd_once(link, into);
  return taken == TakenFd::ended ? detail::take_fd_once(link, into) : taken;
}

}  // namespace mori_ep::comm
