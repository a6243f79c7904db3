// SPDX-License-Identifier: MIT
//! @file Joins over the loopback interface, ranks as threads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/socket.h>

#include "mori_ep/comm/tcp_bootstrap.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {

using Joined = Result<std::shared_ptr<comm::Bootstrap>>;

inline comm::TcpOptions loopback(std::chrono::nanoseconds timeout = std::chrono::seconds(30)) {
  comm::TcpOptions options;
  options.timeout = timeout;
  (void)options.interfaces.list.assign("=lo");
  return options;
}

//! @brief Every rank of `ranks` joins in a thread of its own.
inline std::vector<std::optional<Joined>> join_all(const std::vector<int>& ranks,
                                                   const std::function<Joined(int)>& join) {
  std::vector<std::optional<Joined>> joined(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks.size(); ++i) threads.emplace_back([&, i] { joined[i].emplace(join(ranks[i])); });
  for (auto& thread : threads) thread.join();
  return joined;
}

//! @brief With a unique id, all ranks of `ranks` (0 among them).
inline std::vector<std::optional<Joined>> join_by_id(const std::vector<int>& ranks, int world,
                                                     const comm::TcpOptions& options,
                                                     const std::function<void(const comm::UniqueId&)>& meanwhile = {}) {
  auto root = comm::get_unique_id(options);
  if (!root.ok()) return std::vector<std::optional<Joined>>(ranks.size(), Joined(root.status()));
  comm::UniqueId const id = root->id();
  std::thread other([&] {
    if (meanwhile) meanwhile(id);
  });
  auto joined = join_all(ranks, [&](int rank) {
    return rank == 0 ? comm::join_tcp(std::move(*root), world, options) : comm::join_tcp(id, rank, world, options);
  });
  other.join();
  return joined;
}

inline bool all_ok(const std::vector<std::optional<Joined>>& joined) {
  for (const auto& one : joined)
    if (!one->ok()) {
      UNSCOPED_INFO(one->message());
      return false;
    }
  return true;
}

inline comm::SocketAddress address_in(const comm::UniqueId& id) { return comm::read_unique_id(id)->root; }
inline comm::JobKey key_in(const comm::UniqueId& id) { return comm::read_unique_id(id)->key; }

inline comm::Fd connected_to(const comm::SocketAddress& address) {
  auto socket = comm::connect_to(address, comm::Deadline(std::chrono::seconds(5)));
  return socket.ok() ? std::move(*socket) : comm::Fd();
}
inline void say(const comm::Fd& socket, std::span<const std::byte> bytes) {
  (void)!::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}
inline void say(const comm::Fd& socket, std::string_view text) {
  say(socket, std::as_bytes(std::span(text.data(), text.size())));
}

//! @brief Ends of a mesh over socket pairs, for ranks that are threads.
inline std::vector<std::shared_ptr<comm::Bootstrap>> mesh(int world, std::chrono::nanoseconds timeout) {
  auto const w = static_cast<std::size_t>(world);
  std::vector<std::vector<comm::Link>> links(w);
  for (auto& row : links) row.resize(w);
  for (std::size_t a = 0; a < w; ++a)
    for (std::size_t b = a + 1; b < w; ++b) {
      int pair[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
      links[a][b].socket = comm::Fd(pair[0]);
      links[b][a].socket = comm::Fd(pair[1]);
    }
  std::vector<std::shared_ptr<comm::Bootstrap>> ends;
  for (int r = 0; r < world; ++r)
    ends.push_back(std::make_shared<comm::MeshBootstrap>(r, std::move(links[static_cast<std::size_t>(r)]), timeout));
  return ends;
}

}  // namespace mori_ep::test
