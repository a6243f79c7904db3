// SPDX-License-Identifier: MIT
//! @file File descriptors, deadlines and sockets that never block past one.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "mori_ep/env.hpp"
#include "mori_ep/error.hpp"

namespace mori_ep::comm {

//! @brief An owned file descriptor.
class Fd {
 public:
  Fd() noexcept = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { close(); }
  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool open() const noexcept { return fd_ >= 0; }
  void close() noexcept {
    if (fd_ >= 0) (void)::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

//! @brief A moment by which something must have happened.
class Deadline {
 public:
  explicit Deadline(std::chrono::nanoseconds timeout) noexcept
      : at_(std::chrono::steady_clock::now() +
            std::clamp<std::chrono::nanoseconds>(timeout, std::chrono::nanoseconds(0), std::chrono::hours(24 * 11))) {}
  [[nodiscard]] bool passed() const noexcept { return std::chrono::steady_clock::now() >= at_; }
  [[nodiscard]] std::chrono::nanoseconds left() const noexcept {
    return std::max(at_ - std::chrono::steady_clock::now(), std::chrono::nanoseconds(0));
  }
  //! @brief For poll(): milliseconds that are left, rounded up, at most `most`.
  [[nodiscard]] int left_ms(int most = 1000) const noexcept {
    auto const left = std::chrono::ceil<std::chrono::milliseconds>(at_ - std::chrono::steady_clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, most));
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

[[nodiscard]] inline Error system_error(const char* call, int number = errno, const char* hint = "") noexcept {
  char reason[64] = "";
  return Error{.code = Errc::system_error, .field = call, .value = number, .hint = hint}.with_text(
      ::strerror_r(number, reason, sizeof(reason)));
}

//! @brief "host:port" or "[v6 address]:port" taken apart. Asks nobody.
struct HostAndPort {
  std::string host;
  std::uint16_t port = 0;

  static Error bad(std::string_view text, const char* hint) noexcept {
    return Error{.code = Errc::invalid_argument, .field = "address", .hint = hint}.with_text(text);
  }
  static Result<HostAndPort> parse(std::string_view text) {
    std::string_view host, port;
    if (!text.empty() && text.front() == '[') {
      auto const end = text.find(']');
      if (end == std::string_view::npos || end + 1 >= text.size() || text[end + 1] != ':')
        return bad(text, "Give host:port, or [IPv6 address]:port.");
      host = text.substr(1, end - 1);
      port = text.substr(end + 2);
    } else {
      auto const colon = text.rfind(':');
      if (colon == std::string_view::npos || text.find(':') != colon)
        return bad(text, "Give host:port, or [IPv6 address]:port.");
      host = text.substr(0, colon);
      port = text.substr(colon + 1);
    }
    unsigned number = 0;
    auto const [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
    if (error != std::errc() || end != port.data() + port.size() || number < 1 || number > 65535 || host.empty())
      return bad(text, "Give host:port, or [IPv6 address]:port; a port is 1 to 65535.");
    for (char const c : host)  // a zero byte would end the name for the resolver, but not for who reads it
      if (c <= ' ' || c == '\x7f') return bad(text, "A host's name has no blanks and no control characters.");
    return HostAndPort{std::string(host), static_cast<std::uint16_t>(number)};
  }
};

//! @brief An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() noexcept = default;
  SocketAddress(const sockaddr* address, socklen_t length) noexcept
      : length_(std::min<socklen_t>(length, sizeof(storage_))) {
    std::memcpy(&storage_, address, length_);
  }
  //! @brief From 4 or 16 bytes; `scope` is a link-local address's interface.
  static SocketAddress from(int family, const std::byte* bytes, std::uint16_t port, std::uint32_t scope = 0) noexcept {
    if (family == AF_INET) {
      sockaddr_in in{};
      in.sin_family = AF_INET;
      in.sin_port = htons(port);
      std::memcpy(&in.sin_addr, bytes, 4);
      return {reinterpret_cast<const sockaddr*>(&in), sizeof(in)};
    }
    sockaddr_in6 in{};
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(port);
    in.sin6_scope_id = scope;
    std::memcpy(&in.sin6_addr, bytes, 16);
    return {reinterpret_cast<const sockaddr*>(&in), sizeof(in)};
  }
  //! @brief Where a socket is bound.
  static Result<SocketAddress> of(const Fd& socket) noexcept {
    SocketAddress a;
    a.length_ = sizeof(a.storage_);
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&a.storage_), &a.length_) != 0)
      return system_error("getsockname");
    return a;
  }
  //! @brief "host:port" or "[v6 address]:port", the host a name or an address. Asks the resolver for names.
  static Result<std::vector<SocketAddress>> parse(std::string_view text) {
    auto const place = HostAndPort::parse(text);
    if (!place.ok()) return place.status();
    addrinfo wanted{}, *found = nullptr;
    wanted.ai_socktype = SOCK_STREAM;
    int const failed = ::getaddrinfo(place->host.c_str(), std::to_string(place->port).c_str(), &wanted, &found);
    if (failed != 0)
      return HostAndPort::bad(text, failed == EAI_AGAIN ? "The resolver does not answer. Check it, or give an address."
                                                        : "The host's name has no address. Check it, or give one.");
    std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> const owner(found, &::freeaddrinfo);
    std::vector<SocketAddress> out;
    for (addrinfo* a = found; a != nullptr; a = a->ai_next) out.emplace_back(a->ai_addr, a->ai_addrlen);
    return out;
  }

  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t length() const noexcept { return length_; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] std::uint16_t port() const noexcept {
    return ntohs(family() == AF_INET ? as<sockaddr_in>()->sin_port : as<sockaddr_in6>()->sin6_port);
  }
  [[nodiscard]] std::uint32_t scope() const noexcept {
    return family() == AF_INET6 ? as<sockaddr_in6>()->sin6_scope_id : 0;
  }
  //! @brief The 16 bytes of the address, an IPv4 one's in the first four.
  [[nodiscard]] std::array<std::byte, 16> bytes() const noexcept {
    std::array<std::byte, 16> out{};
    if (family() == AF_INET)
      std::memcpy(out.data(), &as<sockaddr_in>()->sin_addr, 4);
    else
      std::memcpy(out.data(), &as<sockaddr_in6>()->sin6_addr, 16);
    return out;
  }
  [[nodiscard]] SocketAddress with_port(std::uint16_t port) const noexcept {
    return from(family(), bytes().data(), port, scope());
  }
  //! @brief This address as a host sees it that has `near` on the same link: only there does a link-local address's
  //!        interface have that number.
  [[nodiscard]] SocketAddress seen_beside(const SocketAddress& near) const noexcept {
    bool const local = family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&as<sockaddr_in6>()->sin6_addr);
    return local && near.scope() != 0 ? from(family(), bytes().data(), port(), near.scope()) : *this;
  }
  friend bool operator==(const SocketAddress& a, const SocketAddress& b) noexcept {
    return a.family() == b.family() && a.port() == b.port() && a.scope() == b.scope() && a.bytes() == b.bytes();
  }
  [[nodiscard]] std::string text() const {
    char host[64] = "?", port[8] = "?";
    (void)::getnameinfo(get(), length_, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
    return family() == AF_INET6 ? '[' + std::string(host) + "]:" + port : std::string(host) + ':' + port;
  }

 private:
  template <class T>
  [[nodiscard]] const T* as() const noexcept {
    return reinterpret_cast<const T*>(&storage_);
  }
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

//! @brief An address of this host on an interface that is up and allowed: IPv4 before IPv6, others before loopback,
//!        in the system's order.
[[nodiscard]] inline Result<SocketAddress> local_address(const NameFilter& filter) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return system_error("getifaddrs");
  std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> const owner(found, &::freeifaddrs);
  int best = 0;
  SocketAddress address;
  std::string seen;
  for (ifaddrs* i = found; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    int const family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (family == AF_INET) seen += (seen.empty() ? "" : ",") + std::string(i->ifa_name);
    if (!filter.admits(i->ifa_name)) continue;
    bool const loopback = (i->ifa_flags & IFF_LOOPBACK) != 0;
    bool const link_local =
        family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr);
    int const merit = (loopback ? 1 : 4) + (family == AF_INET ? 2 : 1) - (link_local ? 1 : 0);
    if (merit <= best) continue;
    best = merit;
    address = {i->ifa_addr, static_cast<socklen_t>(family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6))};
  }
  if (best == 0)
    return Error{.code = Errc::invalid_environment,
                 .field = "interfaces that are up",
                 .hint = "None of them is allowed by MORI_SOCKET_IFNAME."}
        .with_text(seen);
  return address;
}

[[nodiscard]] inline Result<Fd> stream_socket(int family) noexcept {
  Fd socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return system_error("socket", errno, "Are there file descriptors left (ulimit -n)?");
  return Result<Fd>(std::move(socket));
}

//! @brief A listening socket at `address`; port 0 takes one that is free.
[[nodiscard]] inline Result<Fd> listen_at(const SocketAddress& address, int backlog) noexcept {
  auto socket = stream_socket(address.family());
  if (!socket.ok()) return socket;
  int const on = 1;
  if (address.port() != 0) (void)::setsockopt(socket->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.family() == AF_INET6) (void)::setsockopt(socket->get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
  if (::bind(socket->get(), address.get(), address.length()) != 0) {
    Error const error =
        system_error("bind", errno,
                     "The address is not this host's, or its port is taken: choose another port, or end "
                     "the job that holds it.");
    return error.with_text(address.text() + ": " + error.text);
  }
  if (::listen(socket->get(), backlog) != 0) return system_error("listen");
  return socket;
}

//! @brief A connection that waited, if one did. `exhausted`: one waits, but there is no descriptor for it.
struct Accepted {
  Fd socket;
  bool exhausted = false;
};
[[nodiscard]] inline Accepted accept_one(const Fd& listener) noexcept {
  for (;;) {
    Fd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.open()) return {std::move(socket), false};
    if (errno == EINTR || errno == ECONNABORTED) continue;
    return {Fd(), errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM};
  }
}
[[nodiscard]] inline Error accept_error() noexcept {
  return system_error("accept", EMFILE, "There are not enough file descriptors for all ranks: raise ulimit -n.");
}

inline void send_at_once(const Fd& socket) noexcept {
  int const on = 1;
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

//! @brief While nobody listens at an address: may somebody come yet, or is who listened there gone?
enum class WhenRefused { try_again, give_up };

inline constexpr std::chrono::seconds kOneAddress(2);  //!< how long one of several addresses is waited for

//! @brief Connects by the deadline to one of the addresses that a host has, at least one, which it tries in turn. While
//!        nobody listens there yet, or the way is down, it tries again.
[[nodiscard]] inline Result<Fd> connect_to(std::span<const SocketAddress> addresses, const Deadline& deadline,
                                           WhenRefused when_refused = WhenRefused::try_again) noexcept {
  bool const others = addresses.size() > 1;
  int wait_ms = 1;
  for (std::size_t tries = 1;; ++tries) {
    const SocketAddress& address = addresses[(tries - 1) % addresses.size()];
    // An address that swallows what is sent there must not keep this side from the next.
    Deadline const patience =
        others ? Deadline(std::min<std::chrono::nanoseconds>(deadline.left(), kOneAddress)) : deadline;
    auto socket = stream_socket(address.family());
    if (!socket.ok()) return socket;
    int failed = 0;
    if (::connect(socket->get(), address.get(), address.length()) != 0) {
      failed = errno;
      if (failed == EINPROGRESS) {
        pollfd ready{.fd = socket->get(), .events = POLLOUT, .revents = 0};
        while (::poll(&ready, 1, patience.left_ms()) <= 0 && !patience.passed()) {
        }
        socklen_t length = sizeof(failed);
        failed = ready.revents == 0 ? ETIMEDOUT : 0;
        if (failed == 0) (void)::getsockopt(socket->get(), SOL_SOCKET, SO_ERROR, &failed, &length);
      }
    }
    if (failed == 0) {
      // A socket whose own port the system chose to be the one it connects to has met itself, and keeps whoever is to
      // listen there from it: also afterwards, if it did not end at once.
      auto const here = SocketAddress::of(*socket);
      if (!here.ok() || !(*here == address)) {
        send_at_once(*socket);
        return socket;
      }
      linger const at_once{.l_onoff = 1, .l_linger = 0};
      (void)::setsockopt(socket->get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
      failed = ECONNREFUSED;
    }
    bool const no_port_left = failed == EADDRNOTAVAIL;  // all of this side's are in use at the moment
    bool const may_pass = no_port_left || (failed == ECONNREFUSED && when_refused == WhenRefused::try_again) ||
                          failed == ECONNRESET || failed == EHOSTUNREACH || failed == ENETUNREACH || failed == EINTR ||
                          failed == EAGAIN || (failed == ETIMEDOUT && others);
    if (!may_pass || deadline.passed())
      return system_error("connect", failed, "Is the other side up, and is its port reachable from here?");
    socket->close();
    if (tries % addresses.size() != 0) continue;
    (void)::poll(nullptr, 0, deadline.left_ms(wait_ms));
    wait_ms = std::min(2 * wait_ms, 50);
  }
}
[[nodiscard]] inline Result<Fd> connect_to(const SocketAddress& address, const Deadline& deadline,
                                           WhenRefused when_refused = WhenRefused::try_again) noexcept {
  return connect_to(std::span(&address, 1), deadline, when_refused);
}

}  // namespace mori_ep::comm
