// SPDX-License-Identifier: MIT
//! @file How the endpoints of one process find each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/error.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/loopback/options.hpp"
#include "mori_ep/fabric/loopback/port.hpp"

namespace mori_ep::fabric::loopback {

//! @brief What a rank brings to the join: addresses mean something to all, its own error to itself.
struct Entry {
  const std::shared_ptr<Port>* port;
  const LoopbackOptions* options;
  Order order;
  Error error;
};

inline Status check_arena(const comm::Communicator& comm, std::span<const std::byte> arena) noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(arena.data());
  if (address % 16 == 0) return {};
  return Error{.code = Errc::invalid_argument,
               .rank = comm.rank(),
               .field = "arena's address modulo 16",
               .value = static_cast<std::int64_t>(address % 16),
               .limit = 0,
               .hint = "Rows and signals of an aligned arena are aligned."};
}

//! @brief The error of the lowest rank that has one, the same for all.
inline Status agree(const comm::Communicator& comm, std::span<const Entry> entries) noexcept {
  for (const Entry& entry : entries)
    if (entry.error.code != Errc::ok) return entry.error;
  auto const differs = [&](const char* field, std::int64_t value, std::int64_t limit) -> Status {
    return Error{.code = Errc::config_mismatch,
                 .rank = comm.rank(),
                 .peer = 0,
                 .field = field,
                 .value = value,
                 .limit = limit,
                 .hint = "Every rank must be given the fabric and options of rank 0."};
  };
  const Entry& first = entries.front();
  for (std::size_t r = 1; r < entries.size(); ++r) {
    const LoopbackOptions &mine = *entries[r].options, &its = *first.options;
    if (entries[r].order != first.order)
      return differs("order of the fabric", static_cast<int>(entries[r].order), static_cast<int>(first.order));
    if (mine.queue_pairs != its.queue_pairs) return differs("queue_pairs", mine.queue_pairs, its.queue_pairs);
    if (mine.depth != its.depth) return differs("depth", mine.depth, its.depth);
    if (mine != its) return differs("rank with other faults", static_cast<std::int64_t>(r), Error::kNoLimit);
  }
  return {};
}

//! @brief The ports of all ranks, which are threads of this process. Collective; `here` is what this rank has against
//!        it already.
//! Errors: invalid_argument naming a rank of another process; invalid_config, or config_mismatch with rank 0, of one
//! rank and then of all; as Communicator's calls.
inline Result<std::vector<std::shared_ptr<Port>>> join(const comm::Communicator& comm, std::shared_ptr<Port> port,
                                                       Order order, const LoopbackOptions& options, Status here = {}) {
  for (int r = 0; r < comm.world(); ++r)
    if (!comm.in_process(r))
      return Error{.code = Errc::invalid_argument,
                   .rank = comm.rank(),
                   .field = "rank of another process",
                   .value = r,
                   .hint = "A loopback connects threads of one process. Use fabric::Verbs between processes."};
  if (here.ok()) here = options.check(comm.rank(), comm.world());
  if (here.ok()) here = check_arena(comm, port->arena);
  Entry const mine{&port, &options, order, here.error()};
  std::vector<Entry> entries(static_cast<std::size_t>(comm.world()));
  if (Status s = comm.all_gather(&mine, entries.data(), sizeof(mine)); !s.ok()) return s;
  std::vector<std::shared_ptr<Port>> ports;
  for (const Entry& entry : entries) ports.push_back(*entry.port);
  Status const agreed = agree(comm, entries);
  // The addresses above are of stack objects.
  if (Status s = comm.barrier(); !s.ok()) return s;
  if (!here.ok()) return here;
  if (!agreed.ok()) return agreed;
  return Result<std::vector<std::shared_ptr<Port>>>(std::move(ports));
}

}  // namespace mori_ep::fabric::loopback
