// SPDX-License-Identifier: MIT
//! @file Where a rank's arena is, what lies inside it, and how bytes and signals get there.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "mori_ep/error.hpp"
#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::fabric::loopback {

//! @brief One per rank, shared by all of them, so that it and what `owner` owns outlive every endpoint.
struct Port {
  Port(std::span<std::byte> memory, std::shared_ptr<const void> keeps) noexcept
      : arena(memory), owner(std::move(keeps)) {}

  std::span<std::byte> arena;
  std::shared_ptr<const void> owner;
  std::atomic<bool> gone{false};  // a vanished rank's. It orders nothing.
};

//! @brief Writes a part of a put. Plain stores: the signal behind them publishes.
inline void arrive(const Port& at, std::uint64_t offset, const std::byte* bytes, std::uint64_t n) noexcept {
  if (n != 0) std::memcpy(at.arena.data() + offset, bytes, n);
}
//! @brief Writes a signal. Released, and by the thread that wrote every byte that arrived before it: who acquires the
//!        word sees them. Their source was read by that thread, too, after the poster had acquired it from whoever
//!        wrote it (the command ring does).
inline void arrive(const Port& at, std::uint64_t offset, std::uint64_t signal) noexcept {
  auto* word = reinterpret_cast<std::uint64_t*>(at.arena.data() + offset);
  std::atomic_ref<std::uint64_t>(*word).store(signal, std::memory_order_release);
}

//! @brief Does all of a request lie inside the arenas? The error names what does not.
[[nodiscard]] inline Status check_bounds(const WorkRequest& request, const Port& here, const Port& there,
                                         int rank) noexcept {
  auto const refused = [&](const char* field, std::uint64_t value, std::uint64_t limit) -> Status {
    constexpr std::uint64_t kMost = INT64_MAX;
    return Error{.code = Errc::invalid_argument,
                 .rank = rank,
                 .peer = request.id.peer,
                 .field = field,
                 .value = static_cast<std::int64_t>(value < kMost ? value : kMost),
                 .limit = static_cast<std::int64_t>(limit),
                 .expected = request.id.epoch,
                 .hint = "A request lies inside the arenas, a signal at a multiple of 8. Nothing of it was written."};
  };
  auto const outside = [](std::uint64_t offset, std::uint64_t bytes, const Port& port) {
    return offset > port.arena.size() || bytes > port.arena.size() - offset;
  };
  auto const end = [](std::uint64_t offset, std::uint64_t bytes) {
    return offset + bytes < offset ? ~std::uint64_t{0} : offset + bytes;
  };
  if (request.id.operation != Operation::signal) {
    if (outside(request.local_offset, request.bytes, here))
      return refused("local_offset + bytes", end(request.local_offset, request.bytes), here.arena.size());
    if (outside(request.remote_offset, request.bytes, there))
      return refused("remote_offset + bytes", end(request.remote_offset, request.bytes), there.arena.size());
  }
  if (request.id.operation != Operation::put) {
    if (outside(request.signal_offset, 8, there))
      return refused("signal_offset + 8", end(request.signal_offset, 8), there.arena.size());
    if (request.signal_offset % 8 != 0)
      return refused("signal_offset", request.signal_offset, request.signal_offset / 8 * 8);
  }
  return {};
}

}  // namespace mori_ep::fabric::loopback
