// SPDX-License-Identifier: MIT
//! @file Where a rank's arena is, what lies inside it, and how bytes and signals get there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "mori_ep/error.hpp"
#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::fabric::loopback {

//! @brief One per rank, shared by all of them, so that it and what `owner` owns outlive every endpoint.
struct Port {
  Port(std::span<std::byte> memory, std::span<std::byte> words, std::shared_ptr<const void> keeps) noexcept
      : arena(memory), board(words), owner(std::move(keeps)) {}

  //! @brief Where a request's signal goes.
  [[nodiscard]] std::span<std::byte> words_for(const WorkRequest& r) const noexcept {
    return r.to_board ? board : arena;
  }

  std::span<std::byte> arena, board;
  std::shared_ptr<const void> owner;
  std::atomic<bool> gone{false};  // a vanished rank's. It orders nothing.
};

//! @brief Writes a part of a put. Plain stores: the signal behind them publishes.
inline void arrive(const Port& at, std::uint64_t offset, const std::byte* bytes, std::uint64_t n) noexcept {
  if (n != 0) std::memcpy(at.arena.data() + offset, bytes, n);
}
//! @brief Writes a signal. Released, and by the thread that wrote every byte that arrived before it: who acquires the
//!        word sees them. Their source was read by that thread, too, after the poster had acquired it from whoever
//!        wrote it (the command ring does). A GPU's kernel acquires, and releases to the ring, at the system's scope, in
//!        pinned memory, which is coherent with the host's while it runs.
inline void arrive(const Port& at, const WorkRequest& request) noexcept {
  auto* word = reinterpret_cast<std::uint64_t*>(at.words_for(request).data() + request.signal_offset);
  std::atomic_ref<std::uint64_t>(*word).store(request.signal, std::memory_order_release);
}

[[nodiscard]] inline bool inside(std::span<const std::byte> memory, std::uint64_t offset,
                                 std::uint64_t bytes) noexcept {
  return offset <= memory.size() && bytes <= memory.size() - offset;
}
//! @brief Does all of a request lie inside the arenas?
[[nodiscard]] inline bool inside(const WorkRequest& r, const Port& here, const Port& there) noexcept {
  bool const puts = r.id.operation != Operation::signal, signals = r.id.operation != Operation::put;
  return !(puts && !(inside(here.arena, r.local_offset, r.bytes) && inside(there.arena, r.remote_offset, r.bytes))) &&
         !(signals && !(inside(there.words_for(r), r.signal_offset, 8) && r.signal_offset % 8 == 0));
}

//! @brief What of a request does not.
[[nodiscard]] inline Error bounds_error(const WorkRequest& r, const Port& here, const Port& there, int rank) noexcept {
  auto const refused = [&](const char* field, std::uint64_t value, std::uint64_t limit) -> Error {
    constexpr std::uint64_t kMost = INT64_MAX;
    return {.code = Errc::invalid_argument,
            .rank = rank,
            .peer = r.id.peer,
            .field = field,
            .value = static_cast<std::int64_t>(value < kMost ? value : kMost),
            .limit = static_cast<std::int64_t>(limit),
            .expected = r.id.epoch,
            .hint = "A request lies inside the arenas, a signal at a multiple of 8. Nothing of it was written."};
  };
  auto const end = [](std::uint64_t offset, std::uint64_t bytes) {
    return offset + bytes < offset ? ~std::uint64_t{0} : offset + bytes;
  };
  bool const puts = r.id.operation != Operation::signal;
  if (puts && !inside(here.arena, r.local_offset, r.bytes))
    return refused("local_offset + bytes", end(r.local_offset, r.bytes), here.arena.size());
  if (puts && !inside(there.arena, r.remote_offset, r.bytes))
    return refused("remote_offset + bytes", end(r.remote_offset, r.bytes), there.arena.size());
  if (!inside(there.words_for(r), r.signal_offset, 8))
    return refused("signal_offset + 8", end(r.signal_offset, 8), there.words_for(r).size());
  return refused("signal_offset", r.signal_offset, r.signal_offset / 8 * 8);
}

//! @brief Of a request that names no queue pair of the world's.
[[nodiscard]] inline Error address_error(const WorkId& id, int rank, int world, int queue_pairs) noexcept {
  bool const peer = id.peer >= world;
  return {.code = Errc::invalid_argument,
          .rank = rank,
          .field = peer ? "peer" : "queue_pair",
          .value = peer ? id.peer : id.queue_pair,
          .limit = peer ? world - 1 : queue_pairs - 1,
          .expected = id.epoch,
          .hint = "A request names a rank of the world and one of its queue pairs."};
}

//! @brief What `rank` may not ask for; nothing when all is well.
[[nodiscard]] inline std::optional<Error> refusal(const WorkRequest& r, std::span<const std::shared_ptr<Port>> ports,
                                                  int rank, int queue_pairs) noexcept {
  auto const world = static_cast<int>(ports.size());
  if (r.id.peer >= world || r.id.queue_pair >= queue_pairs) return address_error(r.id, rank, world, queue_pairs);
  const Port &here = *ports[static_cast<std::size_t>(rank)], &there = *ports[r.id.peer];
  if (!inside(r, here, there)) return bounds_error(r, here, there, rank);
  return {};
}

}  // namespace mori_ep::fabric::loopback
