// SPDX-License-Identifier: MIT
//! @file Ways for processes to join a world over TCP: by a unique id that rank 0 makes and the application carries, or
//!       by an address that all were given.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "mori_ep/comm/tcp_rendezvous.hpp"

namespace mori_ep::comm {

//! @brief Rank 0, before the join: an id for the others (`id()`), behind which it listens until all have joined.
[[nodiscard]] inline Result<TcpRoot> get_unique_id(const TcpOptions& options = {}) { return TcpRoot::open(options); }

//! @brief Rank 0's side of the join; collective with join_tcp() on all other ranks. Errors, on every rank that came:
//!        missing_rank with all that did not come within the timeout.
[[nodiscard]] inline Result<std::shared_ptr<Bootstrap>> join_tcp(TcpRoot root, int world,
                                                                 const TcpOptions& options = {}) {
  if (Status s = TcpJoin::check(0, world); !s.ok()) return s;
  return TcpJoin(0, world, options.timeout).as_root(std::move(root));
}

namespace detail {
//! A guest's join by what it was given for an id.
[[nodiscard]] inline Result<std::shared_ptr<Bootstrap>> join_by_id(const UniqueId& id, TcpJoin&& join, int rank) {
  auto const content = read_unique_id(id);
  if (!content)
    return Error{.code = Errc::invalid_argument,
                 .phase = Phase::join,
                 .rank = rank,
                 .field = "unique id",
                 .hint = "These bytes are no id: carry all 128 of what get_unique_id() gave to rank 0."}
        .with_text("other bytes");
  if (content->version != kBootstrapVersion)
    return Refusal{
        .reason = Refusal::Reason::version, .value = kBootstrapVersion, .limit = content->version, .missing = {}}
        .error(rank);
  return join.as_guest({&content->root, 1}, content->key);
}
}  // namespace detail

//! @brief The other ranks' side. Errors besides: protocol_mismatch (bytes that are no id, an id of another job, another
//!        version), config_mismatch (another world, a rank that has joined already), each naming what it is.
[[nodiscard]] inline Result<std::shared_ptr<Bootstrap>> join_tcp(const UniqueId& id, int rank, int world,
                                                                 const TcpOptions& options = {}) {
  if (Status s = TcpJoin::check(rank, world); !s.ok()) return s;
  if (rank == 0)
    return Error{.code = Errc::invalid_argument,
                 .phase = Phase::join,
                 .field = "rank",
                 .value = 0,
                 .limit = 1,
                 .hint = "Rank 0 joins with the root that get_unique_id() gave it."};
  return detail::join_by_id(id, TcpJoin(rank, world, options.timeout), rank);
}

//! @brief All ranks, by an address of rank 0's host and a port that is free there: "host:port" or "[IPv6]:port". For
//!        ranks that nobody can carry an id to.
[[nodiscard]] inline Result<std::shared_ptr<Bootstrap>> join_tcp(std::string_view address, int rank, int world,
                                                                 const TcpOptions& options = {}) {
  if (Status s = TcpJoin::check(rank, world); !s.ok()) return s;
  auto const found = SocketAddress::parse(address);
  if (!found.ok()) return found.status();
  if (rank != 0) return TcpJoin(rank, world, options.timeout).as_guest(*found, TcpRoot::key_of(options.job));
  auto root = TcpRoot::open(*found, options);
  if (!root.ok()) return root.status();
  return TcpJoin(0, world, options.timeout).as_root(std::move(*root));
}

}  // namespace mori_ep::comm
