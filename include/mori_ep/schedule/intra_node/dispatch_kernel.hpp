// SPDX-License-Identifier: MIT
//! @file Dispatch inside a node: counts, slots, rows, one launch.
//!
//! Every rank tells every other how many rows it will send to each rank; from the W x W counts each source knows its
//! first row on each destination, so slots are prefix sums: no remote atomics, nothing to reset, and rows lie in
//! (source rank, source token) order whatever the timing and the block count. Few tokens: every block counts all of
//! them, so that none waits for another. Many: every block counts its own, and the blocks of a rank tell each other.
//! Every block tells the peers by itself when its rows are there.
//!
//! Why one buffer set is enough. Let n be the epoch of this set's dispatch on ranks s (source) and d (destination).
//!  1. s writes d's rows of n only after it has acquired d's counts of n. d publishes those in dispatch n, which its
//!     stream runs after everything that read the rows of n - 1: so no reader is overtaken.
//!  2. d reads rows of n only after it has acquired rows_arrived of n from every block that sent some; a block releases
//!     its word after all its warps have flushed their stores: so rows and metadata are whole.
//!  3. s overwrites its counts of n, of rows and of experts, in dispatch n + 2, since odd and even epochs have words of
//!     their own. It enters that after it has heard d's counts of n + 1, which d publishes after its dispatch n has ended,
//!     which hears all of n: so none is lost. The words and the tally that the blocks of one rank share are overwritten
//!     by that rank's next launch, or by the last block to arrive, after which none touches them.
//!  4. d overwrites its combine rows only after its dispatch n has completed, that is after block 0 has acquired every
//!     rank's counts of n, which s publishes in a stream that has finished combine n - 1: so no puller is overtaken
//!     (combine_kernel.hpp).
//!  5. Block 0 advances this rank's epoch after it has acquired rows_arrived of n from all blocks of its own rank, which
//!     blocks without tokens send, too: so every block has read the epoch before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/schedule/intra_node/dispatch_counts.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One rank's dispatch. Weighted: the ticket keeps each copy's weight.
template <class PeerRef, routing::IndexType Index, bool Weighted>
struct DispatchKernel {
  DispatchArgs<PeerRef, Index> args;

  //! @brief Scratch per block.
  [[nodiscard]] static constexpr std::size_t shared_bytes(int world, int experts, int topk, int warps) noexcept {
    return Scratch::bytes(world, experts, topk, warps);
  }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    Scratch const s = Scratch::carve(ctx, args.port.peers, args.placement.experts(), args.topk);
    auto* state = args.port.peers.template mine<SetState>(args.set.state);
    bool const sends = has(args.halves, Half::send);
    std::uint32_t const epoch = ctx.load(&state->epoch) + (sends ? 1u : 0u);
    std::int32_t const given = args.token_count == nullptr ? args.tokens : ctx.load(args.token_count);
    std::int32_t const count = given < 0 || given > args.tokens ? 0 : given;
    TokenRange const run = TokenRange::part(0, count, ctx.block(), ctx.blocks());
    TokenRange batch = first_batch(run);
    CountExchange<PeerRef, Index> const counts{args,  s,   epoch,
                                               count, run, ctx.blocks() > 1 && count > Ctx::kTokensCountedAlone};
    bool const counting = sends && (batch.count() > 0 || counts.announces(ctx));
    std::uint64_t const first = counting ? counts.first_ranks(ctx) : 0;
    clear(ctx, s);
    if (counting) counts.count_rows(ctx, batch, first);
    ctx.block_sync();

    bool ok = s.flags[Scratch::kStopped] == 0;
    if (sends && ok) {
      if (count != given && ctx.block() == 0 && thread(ctx) == 0)
        args.port.raise(ctx, Errc::invalid_argument, Phase::dispatch_counts, args.port.peers.rank, epoch, epoch, given,
                        args.tokens, Operand::token_count);
      if (counts.shared)
        ok = counts.share(ctx);
      else if (batch.count() > 0)
        counts.fold_earlier(ctx);
      if (ok && counts.announces(ctx)) {
        counts.announce_rows(ctx);
        if (!counts.shared) counts.announce_experts(ctx);
      }
      // While the counts travel: which tokens of the first batch go where, and its payload into the cache.
      if (ok && batch.count() > 0) {
        mark_voters(ctx, s, batch);
        prefetch(ctx, batch);
      }
      if (ok && (batch.count() > 0 || ctx.block() == 0)) ok = counts.hear(ctx);
      if (ok) send_run(ctx, s, counts, batch, state);
      if (ok) publish_rows(ctx, s, epoch, run.count() > 0, count);
    }
    if (ctx.block() == 0) finish(ctx, s, state, epoch, count, ok);
    // Nothing of this block may touch a peer's memory, or its own, after it has counted itself out.
    ctx.block_sync();
    if (thread(ctx) == 0) ctx.launch_ends(&state->blocks_ended);
  }

 private:
  using Scratch = DispatchScratch<PeerRef>;

  [[nodiscard]] MORI_EP_HD TokenRange first_batch(TokenRange run) const {
    std::int32_t const most = Scratch::batch_tokens(args.topk);
    return {run.begin, run.count() < most ? run.end : run.begin + most};
  }

  template <class Ctx>
  MORI_EP_HD void clear(Ctx& ctx, const Scratch& s) const {
    std::int32_t const world = args.placement.world();
    by_thread(ctx, world, [&](std::int32_t i) { s.table[i] = ctx.load(args.port.peers.bases + i); });
    by_thread(ctx, 4 * world, [&](std::int32_t i) { s.total[i] = 0; });
    by_thread(ctx, 2 * args.placement.experts(), [&](std::int32_t i) { s.experts[i] = 0; });
    if (thread(ctx) == 0) {
      for (std::int32_t i = 0; i < Scratch::kFlags; ++i) s.flags[i] = 0;
      s.flags[Scratch::kStopped] = args.port.failed(ctx) ? 1 : 0;
    }
  }

  template <class Ctx>
  MORI_EP_HD void prefetch(Ctx& ctx, TokenRange batch) const {
    WarpShare const share = share_of(ctx, batch);
    if (share.group < share.groups && batch.begin + share.group < batch.end)
      ctx.prefetch_row(args.row_of(batch.begin + share.group), args.row_bytes, share.part, share.parts);
  }
  //! How the warps that move rows share a batch.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD WarpShare share_of(Ctx& ctx, TokenRange batch) const {
    return WarpShare::of(ctx.warp(), Ctx::row_warps(ctx.warps()), batch.count(), Ctx::warps_per_row(args.row_bytes));
  }

  //! Places and sends this block's tokens, batch by batch. The ranks and voters of the first are in scratch.
  template <class Ctx>
  MORI_EP_HD void send_run(Ctx& ctx, const Scratch& s, const CountExchange<PeerRef, Index>& counts, TokenRange batch,
                           SetState* state) const {
    TokenRange const run = counts.run;
    std::int32_t const world = args.placement.world(), most = Scratch::batch_tokens(args.topk);
    MORI_EP_ROLLED
    while (batch.count() > 0) {
      place_batch(ctx, s, batch);
      if (counts.shared && batch.begin == run.begin && ctx.warp() == ctx.warps() - 1) counts.tally_experts(ctx, state);
      // Where some warps move rows, the others do what travels beside them meanwhile.
      std::int32_t const movers = Ctx::row_warps(ctx.warps());
      if (ctx.warp() < movers) send_rows(ctx, s, batch);
      if (movers == ctx.warps())
        send_metadata(ctx, s, batch, thread(ctx), threads(ctx));
      else if (ctx.warp() >= movers)
        send_metadata(ctx, s, batch, thread(ctx) - movers * Ctx::lanes, threads(ctx) - movers * Ctx::lanes);
      TokenRange const next = first_batch({batch.end, run.end});
      if (next.count() == 0) return;
      ctx.block_sync();
      by_thread(ctx, world, [&](std::int32_t d) { s.before[d] += earlier_in_batch(s, batch.count(), d); });
      by_thread(ctx, next.count(), [&](std::int32_t slot) {
        MORI_EP_ROLLED
        for (std::int32_t window = 0; 64 * window < world; ++window)
          s.ranks[window * most + slot] = args.ranks_of(ctx, next.begin + slot, next.end, window);
      });
      ctx.block_sync();
      batch = next;
      mark_voters(ctx, s, batch);
      ctx.block_sync();
    }
  }

  //! Turns the ranks of each token into the tokens of each rank, a warp per tile.
  template <class Ctx>
  MORI_EP_HD void mark_voters(Ctx& ctx, const Scratch& s, TokenRange batch) const {
    std::int32_t const world = args.placement.world(), most = Scratch::batch_tokens(args.topk);
    MORI_EP_ROLLED
    for (std::int32_t tile = ctx.warp(); tile * Scratch::kTile < batch.count(); tile += ctx.warps()) {
      std::uint64_t* voters = s.voters + static_cast<std::ptrdiff_t>(tile) * world;
      by_lane(ctx, world, [&](std::int32_t d) { voters[d] = 0; });
      ctx.warp_sync();
      MORI_EP_ROLLED
      for (std::int32_t part = 0; part < Scratch::kTile; part += Ctx::lanes) {
        std::int32_t const slot = tile * Scratch::kTile + part + ctx.lane();
        MORI_EP_ROLLED
        for (std::int32_t window = 0; 64 * window < world; ++window)
          ctx.for_each_vote(slot < batch.count() ? s.ranks[window * most + slot] : 0,
                            [&](std::int32_t bit, std::uint64_t votes) { voters[64 * window + bit] |= votes << part; });
      }
      if (ctx.lane() != 0) continue;
      std::uint32_t* start = s.start + static_cast<std::ptrdiff_t>(tile) * (world + 1);
      std::uint32_t copies = 0;
      MORI_EP_ROLLED
      for (std::int32_t d = 0; d < world; ++d) {
        start[d] = copies;
        copies += static_cast<std::uint32_t>(routing::count_bits(voters[d]));
      }
      start[world] = copies;
    }
  }
  //! How many tokens of the batch before `slot` go to rank d.
  [[nodiscard]] MORI_EP_HD std::uint32_t earlier_in_batch(const Scratch& s, std::int32_t slot, std::int32_t d) const {
    std::int32_t tokens = 0;
    MORI_EP_ROLLED
    for (std::int32_t at = 0; at < slot; at += Scratch::kTile)
      tokens += routing::count_bits(s.voters[at / Scratch::kTile * args.placement.world() + d] &
                                    routing::low_bits(slot - at));
    return static_cast<std::uint32_t>(tokens);
  }

  //! Gives every token of the batch its row on each of its ranks, a token and rank per thread.
  template <class Ctx>
  MORI_EP_HD void place_batch(Ctx& ctx, const Scratch& s, TokenRange batch) const {
    std::int32_t const world = args.placement.world(), most = Scratch::batch_tokens(args.topk);
    by_thread(ctx, batch.count() * world, [&](std::int32_t i) {
      std::int32_t const slot = i / world, d = i - slot * world, window = d / 64, tile = slot / Scratch::kTile;
      std::uint64_t const ranks = s.ranks[window * most + slot], bit = std::uint64_t{1} << (d % 64);
      bool const counts_copies = d == world - 1;
      if ((ranks & bit) == 0 && !counts_copies) return;
      std::int32_t place = routing::count_bits(ranks & (bit - 1));
      MORI_EP_ROLLED
      for (std::int32_t w = 0; w < window; ++w) place += routing::count_bits(s.ranks[w * most + slot]);
      if (counts_copies) s.count[slot] = place + ((ranks & bit) != 0 ? 1 : 0);
      if ((ranks & bit) == 0) return;
      std::uint32_t const row = s.before[d] + earlier_in_batch(s, slot, d);
      std::uint64_t const voters = s.voters[tile * world + d];
      std::uint32_t const in_tile =
          s.start[tile * (world + 1) + d] +
          static_cast<std::uint32_t>(routing::count_bits(voters & routing::low_bits(slot % Scratch::kTile)));
      s.copies[tile * Scratch::kTile * args.topk + static_cast<std::int32_t>(in_tile)] =
          Copy{static_cast<std::uint16_t>(d), static_cast<std::uint16_t>(slot), row};
      s.routes[slot * args.topk + place] = {d, static_cast<std::int32_t>(row)};
      s.targets[slot * args.topk + place] =
          s.peers.template at<std::byte>(d, args.set.recv_x) + static_cast<std::size_t>(row) * args.row_bytes;
      if (row >= static_cast<std::uint32_t>(args.capacity)) ctx.shared_add(s.flags + Scratch::kDropped, 1u);
    });
    ctx.block_sync();
    if (s.flags[Scratch::kDropped] == 0) return;
    by_thread(ctx, batch.count(), [&](std::int32_t slot) { drop_copies(s, slot); });
    ctx.block_sync();
  }
  //! Leaves out the copies of a token that find no room.
  MORI_EP_HD void drop_copies(const Scratch& s, std::int32_t slot) const {
    routing::RouteEntry* routes = s.routes + slot * args.topk;
    std::byte** targets = s.targets + slot * args.topk;
    std::int32_t kept = 0;
    MORI_EP_ROLLED
    for (std::int32_t c = 0; c < s.count[slot]; ++c) {
      if (routes[c].row >= args.capacity) continue;
      targets[kept] = targets[c];
      routes[kept++] = routes[c];
    }
    s.count[slot] = kept;
  }

  //! The payload: the warps of a group share each row.
  template <class Ctx>
  MORI_EP_HD void send_rows(Ctx& ctx, const Scratch& s, TokenRange batch) const {
    WarpShare const share = share_of(ctx, batch);
    if (share.group >= share.groups) return;
    MORI_EP_ROLLED
    for (std::int32_t t = batch.begin + share.group; t < batch.end; t += share.groups) {
      std::int32_t const slot = t - batch.begin;
      ctx.multicast_row(args.row_of(t), s.targets + slot * args.topk, s.count[slot], args.row_bytes, share.part,
                        share.parts);
    }
  }

  //! What travels beside the rows: source position, ids, weights, scales; and the ticket: where each copy went, for
  //! combine, and the ids and weights, for replay. Neighbouring threads write neighbouring words.
  template <class Ctx>
  MORI_EP_HD void send_metadata(Ctx& ctx, const Scratch& s, TokenRange batch, std::int32_t first,
                                std::int32_t step) const {
    std::int32_t const world = args.placement.world();
    MORI_EP_ROLLED
    for (std::int32_t tile = 0; tile * Scratch::kTile < batch.count(); ++tile) {
      const Copy* copies = s.copies + tile * Scratch::kTile * args.topk;
      auto const n = static_cast<std::int32_t>(s.start[tile * (world + 1) + world]);
      send_beside(ctx, s, batch, copies, n, first, step);
    }
    keep_ticket(ctx, s, batch, first, step);
  }

  template <class Ctx>
  MORI_EP_HD void send_beside(Ctx& ctx, const Scratch& s, TokenRange batch, const Copy* copies, std::int32_t n,
                              std::int32_t first, std::int32_t step) const {
    auto const k = static_cast<std::size_t>(args.topk);
    send_pieces(ctx, s, batch, copies, n, first, step, args.ids, args.ids_stride, k, args.set.recv_ids);
    if (args.weights != nullptr)
      send_pieces(ctx, s, batch, copies, n, first, step, args.weights, args.weights_stride, k, args.set.recv_weights);
    if (args.scales != nullptr)
      send_pieces(ctx, s, batch, copies, n, first, step, args.scales, args.scales_stride, args.scale_bytes,
                  args.set.recv_scales);
    MORI_EP_ROLLED
    for (std::int32_t c = first; c < n; c += step) {
      Copy const copy = copies[c];
      if (copy.row < static_cast<std::uint32_t>(args.capacity))
        ctx.store(s.peers.template at<std::int32_t>(copy.rank, args.set.recv_src_pos) + copy.row,
                  args.port.peers.rank * args.max_tokens + batch.begin + copy.slot);
    }
  }
  //! `each` entries of every copy's token, to its row of `region`.
  template <class Ctx, class V>
  MORI_EP_HD void send_pieces(Ctx& ctx, const Scratch& s, TokenRange batch, const Copy* copies, std::int32_t n,
                              std::int32_t first, std::int32_t step, const V* entries, std::size_t stride,
                              std::size_t each, comm::Region region) const {
    auto const alignment = sizeof(V) % 4 == 0 ? 0 : reinterpret_cast<std::uintptr_t>(entries) | stride * sizeof(V);
    ctx.copy_pieces(
        n, each * sizeof(V), alignment, first, step, [&](std::int32_t c, std::byte*& to, const std::byte*& from) {
          Copy const copy = copies[c];
          if (copy.row >= static_cast<std::uint32_t>(args.capacity)) return false;
          to = s.peers.template at<std::byte>(copy.rank, region) + copy.row * each * sizeof(V);
          from =
              reinterpret_cast<const std::byte*>(entries + static_cast<std::size_t>(batch.begin + copy.slot) * stride);
          return true;
        });
  }

  template <class Ctx>
  MORI_EP_HD void keep_ticket(Ctx& ctx, const Scratch& s, TokenRange batch, std::int32_t first,
                              std::int32_t step) const {
    auto const k = static_cast<std::size_t>(args.topk);
    const SetLayout& set = args.set;
    MORI_EP_ROLLED
    for (std::int32_t i = first; i < batch.count() * args.topk; i += step) {
      std::int32_t const slot = i / args.topk, c = i - slot * args.topk;
      auto const token = static_cast<std::size_t>(batch.begin + slot);
      const Index* row_ids = args.ids_of(batch.begin + slot);
      const float* row_weights = args.weights == nullptr ? nullptr : args.weights + token * args.weights_stride;
      if (c < args.routes_per_token) {
        std::size_t const route = token * static_cast<std::size_t>(args.routes_per_token) + static_cast<std::size_t>(c);
        bool const goes = c < s.count[slot];
        ctx.store(args.port.peers.template mine<routing::RouteEntry>(set.routes) + route,
                  goes ? s.routes[i] : routing::RouteEntry{});
        if constexpr (Weighted)
          ctx.store(args.port.peers.template mine<float>(set.route_weights) + route,
                    goes ? weight_of(ctx, row_ids, row_weights, s.routes[i].rank) : 0.0f);
      }
      auto const at = token * k + static_cast<std::size_t>(c);
      ctx.store(args.port.peers.template mine<Index>(set.sent_ids) + at, ctx.load(row_ids + c));
      if (row_weights != nullptr)
        ctx.store(args.port.peers.template mine<float>(set.sent_weights) + at, ctx.load(row_weights + c));
    }
  }
  //! The token's weights over its experts on `rank`.
  template <class Ctx>
  MORI_EP_HD float weight_of(Ctx& ctx, const Index* row_ids, const float* row_weights, std::int32_t rank) const {
    float sum = 0;
    MORI_EP_ROLLED
    for (std::int32_t i = 0; row_weights != nullptr && i < args.topk; ++i)
      if (args.placement.rank_of(ctx.load(row_ids + i)) == rank) sum += ctx.load(row_weights + i);
    return sum;
  }

  //! Every warp flushes before the block meets: then any of its threads may publish for all. A block without tokens has
  //! nothing to tell but its own rank; the words of the others are numbered from 0 on.
  template <class Ctx>
  MORI_EP_HD void publish_rows(Ctx& ctx, const Scratch& s, std::uint32_t epoch, bool sent, std::int32_t count) const {
    std::int32_t const me = args.port.peers.rank, idle = count < ctx.blocks() ? ctx.blocks() - count : 0;
    if (sent) {
      ctx.flush_stores();
      ctx.block_sync();
    }
    by_thread(ctx, args.placement.world(), [&](std::int32_t peer) {
      if (sent || peer == me)
        ctx.signal(args.rows_arrived(s.peers, peer, me) + ctx.block() - (peer == me ? 0 : idle), epoch, 0);
    });
  }

  //! Block 0: hears the expert counts and waits for the rows of every block that sent some, and for the blocks of its own
  //! rank (only those, when only sending); then the dispatch is done and the epoch advances.
  template <class Ctx>
  MORI_EP_HD void finish(Ctx& ctx, const Scratch& s, SetState* state, std::uint32_t epoch, std::int32_t count,
                         bool ok) const {
    bool const sends = has(args.halves, Half::send), receives = has(args.halves, Half::recv);
    if (ok) {
      if (!sends) recall_senders(ctx, s);
      if (sends) hear_experts(ctx, s, epoch);
      await_rows(ctx, s, epoch, receives);
      ctx.block_sync();
      ok = s.flags[Scratch::kMissing] == 0;
      if (ok && sends) account(ctx, s, state, epoch, count);
    }
    if (ok && receives && dropped(ctx, s, state)) {
      ctx.block_sync();
      if (ctx.warp() == 0) recount_experts(ctx, state);
    }
    if (!ok && ctx.warp() == 0) forget_rows(ctx, state);
  }

  template <class Ctx>
  MORI_EP_HD void hear_experts(Ctx& ctx, const Scratch& s, std::uint32_t epoch) const {
    std::int32_t const me = args.port.peers.rank, each = args.placement.experts_per_rank() + 1;
    auto* words = args.expert_counts_of(s.peers, me, 0, epoch);
    MORI_EP_ROLLED
    for (std::int32_t i = thread(ctx); i < args.placement.world() * each; i += threads(ctx)) {
      std::int32_t const source = i / each, e = i - source * each;
      std::uint32_t rows = 0;
      if (!args.port.await(ctx, words + i, epoch, Phase::dispatch_counts, source, &rows, exec::WaitOrder::none)) {
        ctx.shared_add(s.flags + Scratch::kMissing, 1u);
        break;
      }
      if (e + 1 < each)
        ctx.shared_add(s.received + e, rows);
      else if (source == me)
        s.flags[Scratch::kInvalidTold] = rows;
    }
  }

  //! How many blocks of `source` tell this rank of rows.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD std::uint32_t senders_of(Ctx& ctx, const Scratch& s, std::int32_t source) const {
    if (has(args.halves, Half::send) && source == args.port.peers.rank) return static_cast<std::uint32_t>(ctx.blocks());
    return s.rows[source] == 0 ? 0 : s.blocks[source];
  }
  template <class Ctx>
  MORI_EP_HD void recall_senders(Ctx& ctx, const Scratch& s) const {
    auto* kept = args.port.peers.template mine<std::uint32_t>(args.set.senders);
    by_thread(ctx, args.placement.world(),
              [&](std::int32_t source) { s.rows[source] = s.blocks[source] = ctx.load(kept + source); });
    ctx.block_sync();
  }

  //! Thread i takes the i-th word of all sources' words laid end to end.
  template <class Ctx>
  MORI_EP_HD void await_rows(Ctx& ctx, const Scratch& s, std::uint32_t epoch, bool of_all) const {
    std::int32_t const me = args.port.peers.rank;
    std::int32_t const first = of_all ? 0 : me, end = of_all ? args.placement.world() : me + 1;
    auto at = static_cast<std::uint32_t>(thread(ctx));
    MORI_EP_ROLLED
    for (std::int32_t source = first; source < end;) {
      std::uint32_t const words = senders_of(ctx, s, source);
      if (at >= words) {
        at -= words;
        ++source;
        continue;
      }
      if (!args.port.await(ctx, args.rows_arrived(s.peers, me, source) + at, epoch, Phase::dispatch_rows, source)) {
        ctx.shared_add(s.flags + Scratch::kMissing, 1u);
        break;
      }
      at += static_cast<std::uint32_t>(threads(ctx));
    }
  }

  //! What this rank received, in all and by expert, and from how many blocks.
  template <class Ctx>
  MORI_EP_HD void account(Ctx& ctx, const Scratch& s, SetState* state, std::uint32_t epoch, std::int32_t count) const {
    std::int64_t const total = s.flags[Scratch::kReceived], kept = total < args.capacity ? total : args.capacity;
    if (thread(ctx) == 0) {
      ctx.store(&state->totals, routing::RecvTotals{static_cast<std::int32_t>(kept), 0, total, total - kept,
                                                    static_cast<std::int64_t>(s.flags[Scratch::kInvalidTold])});
      ctx.store(&state->tokens, count);
      ctx.store(&state->epoch, epoch);
    }
    if (!has(args.halves, Half::recv))
      by_thread(ctx, args.placement.world(), [&](std::int32_t source) {
        ctx.store(args.port.peers.template mine<std::uint32_t>(args.set.senders) + source,
                  s.rows[source] == 0 ? 0u : s.blocks[source]);
      });
    by_thread(ctx, args.placement.experts_per_rank(), [&](std::int32_t e) {
      ctx.store(args.port.peers.template mine<std::int32_t>(args.set.expert_count) + e,
                static_cast<std::int32_t>(s.received[e]));
    });
  }

  template <class Ctx>
  MORI_EP_HD bool dropped(Ctx& ctx, const Scratch& s, SetState* state) const {
    if (has(args.halves, Half::send)) return s.flags[Scratch::kReceived] > static_cast<std::uint32_t>(args.capacity);
    return ctx.load(&state->totals.dropped) != 0;
  }

  //! Rows were dropped, so the sources' expert counts are too high: counts the rows that are here.
  template <class Ctx>
  MORI_EP_HD void recount_experts(Ctx& ctx, SetState* state) const {
    std::int32_t const rows = ctx.load(&state->totals.recv_count), local_experts = args.placement.experts_per_rank();
    auto* expert_count = args.port.peers.template mine<std::int32_t>(args.set.expert_count);
    const Index* recv_ids = args.port.peers.template mine<Index>(args.set.recv_ids);
    MORI_EP_ROLLED
    for (std::int32_t e = ctx.lane(); e < local_experts; e += Ctx::lanes) {
      auto const id = static_cast<Index>(args.port.peers.rank * local_experts + e);
      std::int32_t named = 0;
      MORI_EP_ROLLED
      for (std::int32_t r = 0; r < rows; ++r) {
        const Index* row = recv_ids + static_cast<std::size_t>(r) * static_cast<std::size_t>(args.topk);
        bool names = false;
        MORI_EP_ROLLED
        for (std::int32_t k = 0; k < args.topk; ++k) names |= ctx.load(row + k) == id;
        named += names ? 1 : 0;
      }
      ctx.store(expert_count + e, named);
    }
  }

  //! After a fault nobody may take stale rows for fresh ones.
  template <class Ctx>
  MORI_EP_HD void forget_rows(Ctx& ctx, SetState* state) const {
    auto* expert_count = args.port.peers.template mine<std::int32_t>(args.set.expert_count);
    if (ctx.lane() == 0) ctx.store(&state->totals.recv_count, 0);
    by_lane(ctx, args.placement.experts_per_rank(), [&](std::int32_t e) { ctx.store(expert_count + e, 0); });
  }
};

}  // namespace mori_ep::schedule::intra_node
