// SPDX-License-Identifier: MIT
//! @file What a relay and its sources do with records: send them in chunks, pass them on, walk them.
//!
//! A source stages one record for each token and node, in token order, and puts them to its relay there a chunk at a
//! time: the warp that stages the last piece of a chunk asks for it. The record says which row each rank of the node
//! keeps of it, so that relays pass records on in any order, while later chunks are on the wire.
//!
//! Which signal orders what. Let n be the epoch, s a source, p its relay in another node.
//!  1. p reads a chunk of s only after it has acquired far.arrived of n for it. Whoever stages part of a chunk flushes it
//!     and arrives; the last to arrive has acquired all of it, and asks for the put, which the network carries out after.
//!  2. s puts records of n + 1 there, and writes what it has staged again, after it has heard p's counts of n + 1, which
//!     p publishes in a stream that has finished dispatch n, which has acquired all chunks of n, and combine n, which has
//!     read the records for the last time.
//!  3. Ranks of p's node acquire what p passes on by p's own rows_arrived of n: each block says so when it has sent its
//!     rows and passed on its records.
//!  4. In combine p sums only after it has acquired combine_ready of n from its node, and puts a chunk of sums as in 1.
//!     s acquires far.ready of n for each chunk. p writes sums again in combine n + 1, after its dispatch n + 1 has heard
//!     s's counts of n + 1, before which s has acquired all chunks of p's combine n: in its own or, when its ticket was
//!     dropped, in announce_far, in the very block that tells p. Sums of other relays lie elsewhere.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/numeric/coded_row.hpp"
#include "mori_ep/schedule/intra_node/fault.hpp"
#include "mori_ep/schedule/intra_node/relay_layout.hpp"
#include "mori_ep/schedule/intra_node/work_split.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief A transport's kernel half, for a schedule with relays. ExactSums: what they send back is fp32.
template <class Ref, bool ExactSums>
struct RelayedRef : Ref {
  static constexpr bool kRelays = true;
  static constexpr bool kExactSums = ExactSums;
  [[nodiscard]] MORI_EP_HD RelayedRef with_table(std::byte* const* table) const noexcept {
    return {Ref::with_table(table)};
  }
};
//! @brief What relays send back of rows of form R: fp32 where sums are exact, else codes as the rows are, or elements. A
//!        cast has no scale that could follow a sum, so sums of casts are elements.
template <class Ref, RowForm R>
constexpr SumForm sum_form() noexcept {
  if constexpr (Ref::kRelays) {
    if constexpr (Ref::kExactSums && sizeof(RowElement<R>) < sizeof(float)) return SumForm::fp32;
    if constexpr (!Ref::kExactSums && CodedRowType<R>)
      if constexpr (R::kScaled) return SumForm::codes;
  }
  return SumForm::elements;
}
template <class Ref, RowForm R>
using SumRow = std::conditional_t<sum_form<Ref, R>() == SumForm::fp32, float,
                                  std::conditional_t<sum_form<Ref, R>() == SumForm::codes, R, RowElement<R>>>;
//! @brief Are a node's rows summed apart, before they meet the sums of other nodes, which have another form?
template <class Ref, RowForm R>
constexpr bool sums_own_first() noexcept {
  return Ref::kRelays && !std::same_as<SumRow<Ref, R>, R>;
}

//! @brief This rank as the relay of others: walks the records that it was sent, or owes sums for.
template <class PeerRef>
struct RelayWalk {
  const FaultPort<PeerRef>& port;
  const RelayLayout& far;
  std::int32_t max_tokens;
  std::int32_t relay_blocks;  // the last blocks, which relay; 0: all

  [[nodiscard]] MORI_EP_HD std::byte* record(std::int32_t slot, std::int32_t i) const {
    return port.peers.template mine<std::byte>(far.in) + index(slot, i) * far.record.bytes;
  }
  [[nodiscard]] MORI_EP_HD std::byte* sum(std::int32_t slot, std::int32_t i) const {
    return port.peers.template mine<std::byte>(far.back) + index(slot, i) * far.record.back_bytes;
  }
  //! @brief The elements of a sum that becomes codes.
  [[nodiscard]] MORI_EP_HD std::byte* elements(std::int32_t slot, std::int32_t i, std::size_t row_bytes) const {
    return port.peers.template mine<std::byte>(far.elements) + index(slot, i) * row_bytes;
  }
  [[nodiscard]] MORI_EP_HD float* factors(std::int32_t slot, std::int32_t i) const {
    return port.peers.template mine<float>(far.factors) + index(slot, i) * static_cast<std::size_t>(far.nodes.per);
  }
  [[nodiscard]] MORI_EP_HD std::size_t index(std::int32_t slot, std::int32_t i) const {
    return static_cast<std::size_t>(slot) * static_cast<std::size_t>(max_tokens) + static_cast<std::size_t>(i);
  }

  //! @brief Some records of one source.
  struct Chunk {
    std::int32_t source, slot, number, begin, end;
  };
  //! @brief Shares the records out among the warps of the blocks that relay, first chunks of all sources first: `records(slot,
  //!        source)` says how many a source has; `enter(chunk)`, called once for each chunk of which this warp has a record,
  //!        is false when it is not to be had, which ends the walk; then `visit(chunk, i)`. False when it was ended.
  template <class Ctx, class Records, class Enter, class Visit>
  MORI_EP_BODY MORI_EP_HD bool walk(Ctx& ctx, Records&& records, Enter&& enter, Visit&& visit) const {
    std::int32_t const blocks = relay_blocks > 0 ? relay_blocks : ctx.blocks(),
                       block = ctx.block() - (ctx.blocks() - blocks);
    if (block < 0) return true;
    std::int32_t const step = blocks * ctx.warps(), mine = ctx.warp() * blocks + block;
    std::int32_t next = mine;  // this warp's next record, counted from the chunk's first
    bool more = true;
    MORI_EP_ROLLED
    for (std::int32_t number = 0; more && number < far.chunks; ++number) {
      more = false;
      MORI_EP_ROLLED
      for (std::int32_t slot = 0; slot < far.nodes.slots(); ++slot) {
        std::int32_t const source = far.nodes.source(slot, port.peers.rank);
        if (source < 0) continue;
        std::int32_t const all = records(slot, source), begin = number * far.chunk, left = all - begin,
                           here = left < far.chunk ? left : far.chunk;
        if (here <= 0) continue;
        more |= left > here;
        Chunk const chunk{source, slot, number, begin, begin + here};
        if (next < here) {
          if (!enter(chunk)) return false;
          for (; next < here; next += step) visit(chunk, begin + next);
        }
        next -= here;
      }
    }
    return true;
  }
};

//! @brief Counts pieces of a chunk that are there. By a whole warp, which has flushed what it wrote; true for the warp
//!        that completes it.
template <class Ctx>
[[nodiscard]] MORI_EP_BODY MORI_EP_HD bool completes(Ctx& ctx, std::uint32_t* counter, std::int32_t pieces,
                                                     std::int32_t all) {
  std::uint32_t last = 0;
  if (ctx.lane() == 0)
    last = ctx.arrive(counter, static_cast<std::uint32_t>(pieces), static_cast<std::uint32_t>(all)) ? 1 : 0;
  return ctx.broadcast(last) != 0;
}

//! @brief Calls `body(at, r, row)` by one lane for each rank r of `ranks` that keeps a row of a record; `at` counts them.
//!        How many there are. By a whole warp, which has met after.
template <class Ctx, class Body>
MORI_EP_BODY MORI_EP_HD std::int32_t each_kept(Ctx& ctx, const std::int32_t* rows, std::int32_t ranks, Body&& body) {
  std::int32_t count = 0;
  MORI_EP_ROLLED
  for (std::int32_t from = 0; from < ranks; from += Ctx::lanes) {
    std::int32_t const r = from + ctx.lane();
    std::int32_t const row = r < ranks ? ctx.load(rows + r) : -1;
    std::uint64_t const kept = ctx.ballot(row >= 0);
    if (row >= 0) body(count + routing::count_bits(kept & routing::low_bits(ctx.lane())), r, row);
    count += routing::count_bits(kept);
  }
  ctx.warp_sync();
  return count;
}

//! @brief This thread's share of the words by which relays of nodes [begin, end) say that the sums of `epoch` are here.
//!        False when one does not come.
template <class Ctx, class PeerRef>
[[nodiscard]] MORI_EP_BODY MORI_EP_HD bool await_sums(Ctx& ctx, const FaultPort<PeerRef>& port, const RelayLayout& far,
                                                      std::uint32_t epoch, std::int32_t begin, std::int32_t end) {
  auto* words = port.peers.template mine<std::uint64_t>(far.ready);
  std::int32_t const parity = static_cast<std::int32_t>(epoch % 2);
  auto* sent = port.peers.template mine<std::int32_t>(far.sent) + parity * far.nodes.count();
  MORI_EP_ROLLED
  for (std::int32_t i = begin * far.chunks + thread(ctx); i < end * far.chunks; i += threads(ctx)) {
    std::int32_t const node = quotient(i, far.chunks), chunk = i - node * far.chunks;
    if (chunk >= far.chunks_of(ctx.load(sent + node))) continue;
    if (!port.await(ctx, words + i, epoch, Phase::combine_ready, far.nodes.relay(port.peers.rank, node))) return false;
  }
  return true;
}

//! @brief Waits for a word by one lane for a whole warp, which acquires what it orders.
template <class Ctx, class PeerRef>
[[nodiscard]] MORI_EP_BODY MORI_EP_HD bool await_by_warp(Ctx& ctx, const FaultPort<PeerRef>& port, std::uint64_t* word,
                                                         std::uint32_t epoch, Phase phase, std::int32_t peer) {
  std::uint32_t here = 0;
  if (ctx.lane() == 0) here = port.await(ctx, word, epoch, phase, peer) ? 1 : 0;
  here = ctx.broadcast(here);
  ctx.warp_sync();
  return here != 0;
}

}  // namespace mori_ep::schedule::intra_node
