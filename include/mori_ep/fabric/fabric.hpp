// SPDX-License-Identifier: MIT
//! @file What carries bytes between nodes must offer: puts and signals into a peer's arena over queue pairs, and
//!       completions.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "mori_ep/error.hpp"
#include "mori_ep/fabric/counters.hpp"

namespace mori_ep::fabric {

//! @brief What a fabric promises about what is posted to one queue pair. Between queue pairs nothing is promised, ever.
enum class Order {
  none,          //!< a signal may be seen before bytes and signals that were posted before it
  in_queue_pair  //!< who acquires a signal sees all bytes and signals posted before it on its queue pair
};

enum class Operation : std::uint8_t {
  put,        //!< a run of bytes
  signal,     //!< a 64-bit word, stored whole
  put_signal  //!< a run of bytes, and a word that whoever acquires it sees them, whatever the fabric's order
};

constexpr const char* name(Operation operation) noexcept {
  switch (operation) {
    case Operation::put:
      return "put";
    case Operation::signal:
      return "signal";
    case Operation::put_signal:
      return "put_signal";
  }
  return "unknown";
}

//! @brief Names a request where it completes. Packed, it is one word.
struct WorkId {
  static constexpr int kMostPeers = 1 << 12, kMostQueuePairs = 1 << 6;

  Operation operation = Operation::put;
  std::uint8_t queue_pair = 0;  //!< of the peer's
  std::uint16_t peer = 0;
  std::uint16_t sequence = 0;  //!< 12 bits; apart for requests in flight on one queue pair
  std::uint32_t epoch = 0;     //!< of the call that it belongs to

  [[nodiscard]] constexpr std::uint64_t packed() const noexcept {
    return std::uint64_t{epoch} << 32 | std::uint64_t{sequence & 0xfffu} << 20 | std::uint64_t{peer & 0xfffu} << 8 |
           std::uint64_t{queue_pair & 0x3fu} << 2 | static_cast<std::uint64_t>(operation);
  }
  [[nodiscard]] static constexpr WorkId unpacked(std::uint64_t bits) noexcept {
    return {.operation = static_cast<Operation>(bits & 3),
            .queue_pair = static_cast<std::uint8_t>(bits >> 2 & 0x3f),
            .peer = static_cast<std::uint16_t>(bits >> 8 & 0xfff),
            .sequence = static_cast<std::uint16_t>(bits >> 20 & 0xfff),
            .epoch = static_cast<std::uint32_t>(bits >> 32)};
  }
  friend constexpr bool operator==(const WorkId&, const WorkId&) = default;
};

//! @brief What is asked of a queue pair. Offsets are bytes from the start of this rank's and the peer's arena, or of the
//!        peer's board, which holds words that its host reads; all bytes lie inside them, which the poster has checked.
struct WorkRequest {
  WorkId id;
  std::uint64_t local_offset = 0, remote_offset = 0, bytes = 0;  //!< put, put_signal
  std::uint64_t signal_offset = 0;                               //!< signal, put_signal: a multiple of 8 at the peer
  std::uint64_t signal = 0;                                      //!< exec::signal_word
  bool to_board = false;                                         //!< the signal's offset is in the peer's board
};

//! @brief The end of a request: its source may be written again and its place in the queue pair is free. That says
//!        nothing of the peer, which acquires signals. An error is final for the queue pair.
struct Completion {
  WorkId id;
  Status status;
};

//! @brief See Fabric. Half of what WorkId::sequence tells apart: with as many in flight none is taken for another.
inline constexpr std::uint32_t kLatestDuplicate = 1u << 11;

//! @brief One rank's end of a network. One thread at a time calls it, the proxy's, but for counters().
//!
//! `post(requests)`, all of one queue pair, takes the first n of them in order and says n; fewer than asked mean that
//! the queue pair is full: try the rest after poll(). Back-pressure is no error and loses nothing. Each request taken
//! completes; `poll(into)` says how many completions it gave, in any order, perhaps one of them twice (their sequence
//! tells), the second time before its queue pair takes kLatestDuplicate requests more. A failed queue pair takes
//! requests and completes them with its error.
template <class F>
concept Fabric = requires(F fabric, const F& seen, std::span<const WorkRequest> requests, std::span<Completion> into) {
  { F::kName } -> std::convertible_to<const char*>;
  { F::kOrder } -> std::convertible_to<Order>;
  { F::kHostCopies } -> std::convertible_to<bool>;  // by threads of the host, which must reach the arenas, too
  { seen.rank() } -> std::same_as<int>;
  { seen.world() } -> std::same_as<int>;
  { seen.queue_pairs() } -> std::same_as<int>;  // to each peer
  { seen.depth() } -> std::same_as<int>;        // requests that a queue pair holds, at most 4095
  { fabric.post(requests) } -> std::same_as<std::size_t>;
  { fabric.poll(into) } -> std::same_as<std::size_t>;
  { seen.counters(0) } -> std::same_as<const Counters&>;  // of a peer
};

}  // namespace mori_ep::fabric
