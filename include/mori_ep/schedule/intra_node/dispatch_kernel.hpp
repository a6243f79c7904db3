// SPDX-License-Identifier: MIT
//! @file Dispatch inside a node: counts, slots, rows, one launch.
//!
//! Every rank tells every other how many rows it will send to each rank; from the W x W counts each source knows its
//! first row on each destination, so slots are prefix sums: no remote atomics, nothing to reset, and rows lie in
//! (source rank, source token) order whatever the timing and the block count.
//!
//! Why one buffer set is enough. Let n be the epoch of this set's dispatch on ranks s (source) and d (destination).
//!  1. s writes d's rows of n only after it has acquired d's counts of n. d publishes those in dispatch n, which its
//!     stream runs after everything that read the rows of n - 1: so no reader is overtaken.
//!  2. d reads rows of n only after it has acquired rows_arrived of n from every s; s releases that word after all its
//!     blocks have flushed their stores and arrived at the block counter: so rows, metadata and expert counts are
//!     whole.
//!  3. s overwrites its counts of n (with n + 1) only in its next dispatch, after rows_arrived of n from d; d releases
//!     that after all its blocks have acquired every count of n: so no count is lost.
//!  4. d overwrites its combine rows only after its dispatch n has completed, that is after rows_arrived of n from
//!  every
//!     s, which s sent in a stream that had finished combine n - 1: so no puller is overtaken (combine_kernel.hpp).
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/routing/route.hpp"
#include "mori_ep/schedule/intra_node/fault.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief Which halves of a phase a launch runs.
enum class Half : std::uint32_t { send = 1, recv = 2, both = 3 };
MORI_EP_HD constexpr bool has(Half halves, Half half) noexcept {
  return (static_cast<std::uint32_t>(halves) & static_cast<std::uint32_t>(half)) != 0;
}

//! @brief Tokens [begin, end): part `i` of `parts` nearly equal runs of [first, first + count).
struct TokenRange {
  std::int32_t begin, end;
  static MORI_EP_HD constexpr TokenRange part(std::int32_t first, std::int32_t count, std::int32_t i,
                                              std::int32_t parts) noexcept {
    return {first + static_cast<std::int32_t>(std::int64_t{count} * i / parts),
            first + static_cast<std::int32_t>(std::int64_t{count} * (i + 1) / parts)};
  }
  //! @brief The part that token `at` of `count` falls into.
  static MORI_EP_HD constexpr std::int32_t part_of(std::int32_t at, std::int32_t count, std::int32_t parts) noexcept {
    return static_cast<std::int32_t>(((std::int64_t{at} + 1) * parts - 1) / count);
  }
};

//! @brief One rank's dispatch. Operands: x [t, H], ids [t, K], weights [t, K] fp32 or none, scales [t, scale_bytes] or
//! none.
template <class PeerRef, routing::IndexType Index>
struct DispatchKernel {
  FaultPort<PeerRef> port;
  SetLayout set;
  routing::Placement placement;
  std::int32_t topk, routes_per_token, max_tokens, capacity;
  Half halves;
  std::int32_t tokens;
  const std::byte* x;
  const Index* ids;
  const float* weights;
  const std::byte* scales;
  std::size_t x_stride, ids_stride, weights_stride, scales_stride;  // bytes, elements, elements, bytes
  std::size_t row_bytes, scale_bytes;

  //! @brief Scratch per block.
  [[nodiscard]] static std::size_t shared_bytes(int world, int experts, int topk, int warps) noexcept {
    auto const w = static_cast<std::size_t>(world), n = static_cast<std::size_t>(warps),
               k = static_cast<std::size_t>(topk);
    return sizeof(std::uint32_t) * (4 + w * (2 + n) + static_cast<std::size_t>(experts)) +
           n * k * (sizeof(std::byte*) + sizeof(std::int32_t)) + 64;
  }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    Scratch const scratch = carve(ctx);
    for (std::int32_t i = thread(ctx); i < 2 * placement.world(); i += threads(ctx)) scratch.total[i] = 0;
    for (std::int32_t i = thread(ctx); i < ctx.warps() * placement.world(); i += threads(ctx)) scratch.next[i] = 0;
    for (std::int32_t i = thread(ctx); i < placement.experts(); i += threads(ctx)) scratch.experts[i] = 0;
    if (thread(ctx) == 0) {
      scratch.flags[kStopped] = port.failed(ctx) ? 1 : 0;
      scratch.flags[kUnheard] = 0;
      scratch.flags[kInvalid] = 0;
    }
    ctx.block_sync();

    auto* state = port.peers.template mine<SetState>(set.state);
    bool stopped = scratch.flags[kStopped] != 0;
    std::uint32_t const epoch = ctx.load(&state->epoch) + (has(halves, Half::send) ? 1u : 0u);
    if (has(halves, Half::send) && !stopped) {
      count_rows(ctx, scratch);
      announce_counts(ctx, scratch, epoch);
      stopped = !hear_counts(ctx, scratch, epoch);
      if (!stopped) send_rows(ctx, scratch);
    }

    // Every warp flushes before the block meets, the block arrives once: the last block may publish for all of them.
    ctx.flush_stores();
    ctx.block_sync();
    if (thread(ctx) == 0) scratch.flags[kLast] = ctx.arrive(&state->dispatch_blocks) ? 1 : 0;
    ctx.block_sync();
    if (scratch.flags[kLast] == 0 || ctx.warp() != 0) return;
    finish(ctx, state, epoch);
  }

 private:
  enum Flag : std::int32_t { kStopped = 0, kUnheard = 1, kInvalid = 2, kLast = 3 };

  struct Scratch {
    std::uint32_t* flags;    // [4]
    std::uint32_t* total;    // [W] rows of all tokens, by destination
    std::uint32_t* before;   // [W] rows of earlier ranks and of tokens before this block's: its first row
    std::uint32_t* next;     // [warps][W] first the warp's rows, then its next row
    std::uint32_t* experts;  // [E] rows this block sent, by expert
    std::byte** targets;     // [K] of this warp: where the token goes
    std::int32_t* ranks;     // [K] of this warp: the rank of each id
  };

  template <class Ctx>
  static MORI_EP_HD std::int32_t thread(Ctx& ctx) {
    return ctx.warp() * Ctx::lanes + ctx.lane();
  }
  template <class Ctx>
  static MORI_EP_HD std::int32_t threads(Ctx& ctx) {
    return ctx.warps() * Ctx::lanes;
  }

  template <class Ctx>
  MORI_EP_HD Scratch carve(Ctx& ctx) const {
    auto const w = static_cast<std::size_t>(placement.world()), warps = static_cast<std::size_t>(ctx.warps()),
               k = static_cast<std::size_t>(topk);
    Scratch s;
    s.flags = ctx.template shared<std::uint32_t>(4);
    s.total = ctx.template shared<std::uint32_t>(2 * w);
    s.before = s.total + w;
    s.next = ctx.template shared<std::uint32_t>(warps * w);
    s.experts = ctx.template shared<std::uint32_t>(static_cast<std::size_t>(placement.experts()));
    s.targets = ctx.template shared<std::byte*>(warps * k) + static_cast<std::size_t>(ctx.warp()) * k;
    s.ranks = ctx.template shared<std::int32_t>(warps * k) + static_cast<std::size_t>(ctx.warp()) * k;
    return s;
  }

  template <class Ctx>
  MORI_EP_HD TokenRange block_tokens(Ctx& ctx) const {
    return TokenRange::part(0, tokens, ctx.block(), ctx.blocks());
  }

  //! Looks up the rank of each of the token's ids, one id per lane.
  template <class Ctx>
  MORI_EP_HD void route(Ctx& ctx, std::int32_t token, std::int32_t* ranks) const {
    const Index* row = ids + static_cast<std::size_t>(token) * ids_stride;
    ctx.warp_sync();
    for (std::int32_t k = ctx.lane(); k < topk; k += Ctx::lanes) ranks[k] = placement.rank_of(ctx.load(row + k));
    ctx.warp_sync();
  }

  //! Every block counts all tokens, so that no block has to wait for another's counts.
  template <class Ctx>
  MORI_EP_HD void count_rows(Ctx& ctx, const Scratch& s) const {
    TokenRange const mine = block_tokens(ctx);
    for (std::int32_t t = ctx.warp(); t < tokens; t += ctx.warps()) {
      route(ctx, t, s.ranks);
      bool const in_block = t >= mine.begin && t < mine.end;
      std::uint32_t* run = in_block ? s.next + static_cast<std::ptrdiff_t>(TokenRange::part_of(
                                                   t - mine.begin, mine.end - mine.begin, ctx.warps())) *
                                                   placement.world()
                                    : s.before;
      bool const counts_for_run = t < mine.end;
      routing::for_each_destination(s.ranks, topk, placement.world(), [&](std::int32_t d) {
        if (ctx.lane() != 0) return;
        ctx.shared_add(s.total + d, 1u);
        if (counts_for_run) ctx.shared_add(run + d, 1u);
      });
    }
    ctx.block_sync();
  }

  //! The blocks share the peers out. Release: what this rank's stream did before (reading the rows of the last epoch)
  //! is done when a peer sees this epoch.
  template <class Ctx>
  MORI_EP_HD void announce_counts(Ctx& ctx, const Scratch& s, std::uint32_t epoch) const {
    std::int32_t const world = placement.world();
    for (std::int32_t peer = ctx.block(); peer < world; peer += ctx.blocks()) {
      auto* row = port.peers.template at<std::uint64_t>(peer, set.counts) +
                  static_cast<std::ptrdiff_t>(port.peers.rank) * world;
      for (std::int32_t d = thread(ctx); d < world; d += threads(ctx)) ctx.signal(row + d, epoch, s.total[d]);
    }
  }

  //! Acquires all W x W counts and turns them into this block's first rows. False when a peer did not come.
  template <class Ctx>
  MORI_EP_HD bool hear_counts(Ctx& ctx, const Scratch& s, std::uint32_t epoch) const {
    std::int32_t const world = placement.world();
    auto* counts = port.peers.template mine<std::uint64_t>(set.counts);
    for (std::int32_t i = thread(ctx); i < world * world; i += threads(ctx)) {
      std::int32_t const source = i / world, destination = i % world;
      std::uint32_t rows = 0;
      if (!port.await(ctx, counts + i, epoch, Phase::dispatch_counts, source, &rows)) {
        ctx.shared_add(s.flags + kUnheard, 1u);
        break;
      }
      if (source < port.peers.rank) ctx.shared_add(s.before + destination, rows);
    }
    ctx.block_sync();
    for (std::int32_t d = thread(ctx); d < world; d += threads(ctx)) {
      std::uint32_t row = s.before[d];
      for (std::int32_t w = 0; w < ctx.warps(); ++w) {
        std::uint32_t const rows = s.next[w * world + d];
        s.next[w * world + d] = row;
        row += rows;
      }
    }
    ctx.block_sync();
    return s.flags[kUnheard] == 0;
  }

  template <class Ctx>
  MORI_EP_HD void send_rows(Ctx& ctx, const Scratch& s) const {
    TokenRange const block = block_tokens(ctx);
    TokenRange const mine = TokenRange::part(block.begin, block.end - block.begin, ctx.warp(), ctx.warps());
    std::uint32_t* next = s.next + static_cast<std::ptrdiff_t>(ctx.warp()) * placement.world();
    for (std::int32_t t = mine.begin; t < mine.end; ++t) send_token(ctx, s, next, t);
    ctx.block_sync();
    auto* sent = port.peers.template mine<std::uint32_t>(set.expert_sent);
    for (std::int32_t e = thread(ctx); e < placement.experts(); e += threads(ctx))
      if (s.experts[e] != 0) ctx.add(sent + e, s.experts[e]);
    if (thread(ctx) == 0 && s.flags[kInvalid] != 0)
      ctx.add(&port.peers.template mine<SetState>(set.state)->invalid_ids, s.flags[kInvalid]);
  }

  template <class Ctx>
  MORI_EP_HD void send_token(Ctx& ctx, const Scratch& s, std::uint32_t* next, std::int32_t t) const {
    const Index* row_ids = ids + static_cast<std::size_t>(t) * ids_stride;
    const float* row_weights = weights == nullptr ? nullptr : weights + static_cast<std::size_t>(t) * weights_stride;
    auto* routes = port.peers.template mine<routing::RouteEntry>(set.routes) +
                   static_cast<std::size_t>(t) * static_cast<std::size_t>(routes_per_token);
    route(ctx, t, s.ranks);
    auto const k = static_cast<std::size_t>(topk);
    ctx.copy(port.peers.template mine<Index>(set.sent_ids) + static_cast<std::size_t>(t) * k, row_ids,
             k * sizeof(Index));
    if (row_weights != nullptr)
      ctx.copy(port.peers.template mine<float>(set.sent_weights) + static_cast<std::size_t>(t) * k, row_weights,
               k * sizeof(float));
    std::int32_t copies = 0;
    routing::for_each_destination(s.ranks, topk, placement.world(), [&](std::int32_t d) {
      std::uint32_t const row = next[d];
      if (row >= static_cast<std::uint32_t>(capacity)) return;
      if (ctx.lane() == 0) {
        s.targets[copies] =
            port.peers.template at<std::byte>(d, set.recv_x) + static_cast<std::size_t>(row) * row_bytes;
        ctx.store(routes + copies,
                  routing::RouteEntry{d, static_cast<std::int32_t>(row), weight_of(ctx, s.ranks, row_weights, d)});
        ctx.store(port.peers.template at<std::int32_t>(d, set.recv_src_pos) + row, port.peers.rank * max_tokens + t);
      }
      ctx.copy(port.peers.template at<Index>(d, set.recv_ids) + row * k, row_ids, k * sizeof(Index));
      if (row_weights != nullptr)
        ctx.copy(port.peers.template at<float>(d, set.recv_weights) + row * k, row_weights, k * sizeof(float));
      if (scales != nullptr)
        ctx.copy(port.peers.template at<std::byte>(d, set.recv_scales) + row * scale_bytes,
                 scales + static_cast<std::size_t>(t) * scales_stride, scale_bytes);
      ++copies;
    });
    if (ctx.lane() == 0 && copies < routes_per_token) ctx.store(routes + copies, routing::RouteEntry{});
    count_experts(ctx, s, next, row_ids);
    ctx.warp_sync();
    ctx.multicast_row(x + static_cast<std::size_t>(t) * x_stride, s.targets, copies, row_bytes);
    if (ctx.lane() == 0)
      routing::for_each_destination(s.ranks, topk, placement.world(), [&](std::int32_t d) { ++next[d]; });
    ctx.warp_sync();
  }

  template <class Ctx>
  MORI_EP_HD float weight_of(Ctx& ctx, const std::int32_t* ranks, const float* row_weights, std::int32_t rank) const {
    float sum = 0;
    if (row_weights != nullptr)
      for (std::int32_t k = 0; k < topk; ++k)
        if (ranks[k] == rank) sum += ctx.load(row_weights + k);
    return sum;
  }

  //! One row per expert that the token names, where the row was kept; ids that name nothing are told apart.
  template <class Ctx>
  MORI_EP_HD void count_experts(Ctx& ctx, const Scratch& s, const std::uint32_t* next, const Index* row_ids) const {
    for (std::int32_t k = ctx.lane(); k < topk; k += Ctx::lanes) {
      Index const id = ctx.load(row_ids + k);
      if (s.ranks[k] < 0) {
        if (id != static_cast<Index>(routing::kNoExpert)) ctx.shared_add(s.flags + kInvalid, 1u);
      } else if (next[s.ranks[k]] < static_cast<std::uint32_t>(capacity) && routing::first_mention(row_ids, k)) {
        ctx.shared_add(s.experts + id, 1u);
      }
    }
  }

  //! The last block, one warp: publishes what all blocks wrote, then waits for what the peers wrote.
  template <class Ctx>
  MORI_EP_HD void finish(Ctx& ctx, SetState* state, std::uint32_t epoch) const {
    std::int32_t const world = placement.world(), local_experts = placement.experts_per_rank(), me = port.peers.rank;
    bool ok = !port.failed(ctx);
    if (has(halves, Half::send)) {
      auto* sent = port.peers.template mine<std::uint32_t>(set.expert_sent);
      if (ctx.lane() == 0) take_totals(ctx, state, ok);
      for (std::int32_t e = ctx.lane(); e < placement.experts(); e += Ctx::lanes) {
        auto* counts = port.peers.template at<std::uint32_t>(e / local_experts, set.expert_counts) +
                       static_cast<std::ptrdiff_t>(me) * local_experts;
        if (ok) ctx.store(counts + e % local_experts, ctx.load(sent + e));
        ctx.store(sent + e, 0u);
      }
      ctx.flush_stores();
      ctx.warp_sync();
      if (ok)
        for (std::int32_t peer = ctx.lane(); peer < world; peer += Ctx::lanes)
          ctx.signal(port.peers.template at<std::uint64_t>(peer, set.rows_arrived) + me, epoch, 0);
      if (ok && ctx.lane() == 0) ctx.store(&state->epoch, epoch);
    }
    if (has(halves, Half::recv) && ok) {
      auto* arrived = port.peers.template mine<std::uint64_t>(set.rows_arrived);
      for (std::int32_t source = ctx.lane(); source < world; source += Ctx::lanes)
        if (!port.await(ctx, arrived + source, epoch, Phase::dispatch_rows, source)) break;
      ctx.warp_sync();
      ok = !port.failed(ctx);
      auto* counts = port.peers.template mine<std::uint32_t>(set.expert_counts);
      auto* expert_count = port.peers.template mine<std::int32_t>(set.expert_count);
      for (std::int32_t e = ctx.lane(); e < local_experts; e += Ctx::lanes) {
        std::uint32_t rows = 0;
        for (std::int32_t source = 0; ok && source < world; ++source)
          rows += ctx.load(counts + static_cast<std::ptrdiff_t>(source) * local_experts + e);
        ctx.store(expert_count + e, static_cast<std::int32_t>(rows));
      }
    }
    // After a fault nobody may take stale rows for fresh ones.
    if (!ok && ctx.lane() == 0) ctx.store(&state->totals.recv_count, 0);
    if (ctx.lane() == 0) ctx.publish(&state->launches_done, ctx.load(&state->launches_done) + 1);
  }

  //! From the counts, which this block has acquired: before rows_arrived goes out they cannot be overwritten.
  template <class Ctx>
  MORI_EP_HD void take_totals(Ctx& ctx, SetState* state, bool ok) const {
    std::int64_t total = 0;
    auto* counts = port.peers.template mine<std::uint64_t>(set.counts);
    for (std::int32_t source = 0; ok && source < placement.world(); ++source)
      total += exec::signal_payload(
          ctx.peek(counts + static_cast<std::ptrdiff_t>(source) * placement.world() + port.peers.rank));
    std::int64_t const kept = total < capacity ? total : capacity;
    ctx.store(&state->totals, routing::RecvTotals{static_cast<std::int32_t>(kept), 0, total, total - kept,
                                                  static_cast<std::int64_t>(ctx.load(&state->invalid_ids))});
    ctx.store(&state->invalid_ids, 0u);
  }
};

}  // namespace mori_ep::schedule::intra_node
