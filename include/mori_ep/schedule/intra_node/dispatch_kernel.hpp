// SPDX-License-Identifier: MIT
//! @file Dispatch inside a node: counts, slots, rows, one launch.
//!
//! Every rank tells every other how many rows it will send to each rank; from the W x W counts each source knows its
//! first row on each destination, so slots are prefix sums: no remote atomics, nothing to reset, and rows lie in
//! (source rank, source token) order whatever the timing and the block count. Every block counts all tokens, so no block
//! waits for another's counts, and tells the peers by itself when its rows are there.
//!
//! Why one buffer set is enough. Let n be the epoch of this set's dispatch on ranks s (source) and d (destination).
//!  1. s writes d's rows of n only after it has acquired d's counts of n. d publishes those in dispatch n, which its
//!     stream runs after everything that read the rows of n - 1: so no reader is overtaken.
//!  2. d reads rows of n only after it has acquired rows_arrived of n from every block of every s; a block releases its
//!     word after all its warps have flushed their stores: so rows and metadata are whole.
//!  3. s overwrites its counts of n (with n + 1) only in its next dispatch, after rows_arrived of n from all blocks of d;
//!     a block of d releases that after it has acquired every count of n, and block 0 after it has read every expert
//!     count, too: so none is lost.
//!  4. d overwrites its combine rows only after its dispatch n has completed, that is after rows_arrived of n from every
//!     s, which s sent in a stream that had finished combine n - 1: so no puller is overtaken (combine_kernel.hpp).
//!  5. Block 0 advances this rank's epoch after it has acquired rows_arrived of n from all blocks of its own rank: so
//!     every block has read the epoch before.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/routing/route.hpp"
#include "mori_ep/schedule/intra_node/fault.hpp"
#include "mori_ep/schedule/intra_node/work_split.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One rank's dispatch. Operands: x [t, H], ids [t, K], weights [t, K] fp32 or none, scales [t, scale_bytes] or
//!        none; t is `tokens`, or what `token_count` holds when it is given. Weighted: the ticket keeps each copy's weight.
template <class PeerRef, routing::IndexType Index, bool Weighted>
struct DispatchKernel {
  FaultPort<PeerRef> port;
  SetLayout set;
  routing::Placement placement;
  std::int32_t topk, routes_per_token, max_tokens, capacity;
  Half halves;
  std::int32_t tokens;
  const std::int32_t* token_count;
  const std::byte* x;
  const Index* ids;
  const float* weights;
  const std::byte* scales;
  std::size_t x_stride, ids_stride, weights_stride, scales_stride;  // bytes, elements, elements, bytes
  std::size_t row_bytes, scale_bytes;

  //! @brief Scratch per block.
  [[nodiscard]] static constexpr std::size_t shared_bytes(int world, int experts, int topk, int warps) noexcept {
    auto const w = static_cast<std::size_t>(world), n = static_cast<std::size_t>(warps),
               k = static_cast<std::size_t>(topk);
    return (w + n * k) * sizeof(std::byte*) +
           batch_tokens(topk) * (k * sizeof(Copy) + sizeof(std::int32_t) + sizeof(std::uint64_t)) +
           sizeof(std::uint32_t) * (kFlags + w * (3 + n) + 2 * static_cast<std::size_t>(experts)) + 128;
  }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    Scratch const scratch = carve(ctx);
    std::int32_t const world = placement.world();
    for (std::int32_t i = thread(ctx); i < world; i += threads(ctx)) scratch.table[i] = ctx.load(port.peers.bases + i);
    for (std::int32_t i = thread(ctx); i < 2 * world; i += threads(ctx)) scratch.total[i] = 0;
    for (std::int32_t i = thread(ctx); i < 2 * placement.experts(); i += threads(ctx)) scratch.experts[i] = 0;
    if (thread(ctx) == 0) {
      for (std::int32_t i = 0; i < kFlags; ++i) scratch.flags[i] = 0;
      scratch.flags[kStopped] = port.failed(ctx) ? 1 : 0;
    }
    auto* state = port.peers.template mine<SetState>(set.state);
    std::uint32_t const epoch = ctx.load(&state->epoch) + (has(halves, Half::send) ? 1u : 0u);
    std::int32_t const given = token_count == nullptr ? tokens : ctx.load(token_count);
    std::int32_t const count = given < 0 || given > tokens ? 0 : given;
    // The first tokens' ids are on their way while the block meets.
    std::uint64_t const first_ranks = has(halves, Half::send) ? ranks_of(ctx, thread(ctx), count, 0) : 0;
    ctx.block_sync();

    bool ok = scratch.flags[kStopped] == 0;
    if (has(halves, Half::send) && ok) {
      if (count != given && ctx.block() == 0 && thread(ctx) == 0)
        port.raise(ctx, Errc::invalid_argument, Phase::dispatch_counts, port.peers.rank, epoch, epoch, given, tokens,
                   Operand::token_count);
      TokenRange const run = TokenRange::part(0, count, ctx.block(), ctx.blocks());
      count_rows(ctx, scratch, count, run.begin, first_ranks);
      announce_counts(ctx, scratch, epoch);
      // While the counts travel: the first batch's rows by warp, and its payload into the cache.
      TokenRange batch = first_batch(run);
      count_batch(ctx, scratch, batch);
      prefetch(ctx, batch);
      ok = hear_counts(ctx, scratch, epoch);
      if (ok && ctx.block() == 0) account(ctx, scratch, state, count);
      while (ok && batch.count() > 0) {
        place_batch(ctx, scratch, batch);
        send_rows(ctx, scratch, batch);
        send_metadata(ctx, scratch, batch);
        batch = first_batch({batch.end, run.end});
        if (batch.count() == 0) break;
        ctx.block_sync();
        count_batch(ctx, scratch, batch);
        ctx.block_sync();
      }
      if (ok) {
        // Every warp flushes before the block meets: then any of its threads may publish for all.
        ctx.flush_stores();
        ctx.block_sync();
        for (std::int32_t peer = thread(ctx); peer < world; peer += threads(ctx))
          ctx.signal(rows_arrived(scratch, peer, port.peers.rank) + ctx.block(), epoch, 0);
      }
    }
    if (ctx.block() == 0) finish(ctx, scratch, state, epoch, ok);
    // Nothing of this block may touch a peer's memory, or its own, after it has counted itself out.
    ctx.block_sync();
    if (thread(ctx) == 0) ctx.launch_ends(&state->blocks_ended);
  }

 private:
  enum Flag : std::int32_t { kStopped = 0, kUnheard, kInvalid, kReceived, kMissing, kFlags };

  //! One copy of a token: the rank it goes to and its row there.
  struct Copy {
    std::int32_t rank;
    std::uint32_t row;
  };

  struct Scratch {
    PeerRef peers;            // through `table`
    std::byte** table;        // [W] arena bases
    std::uint32_t* flags;     // [kFlags]
    std::uint32_t* total;     // [W] rows of all tokens, by destination
    std::uint32_t* before;    // [W] rows of earlier ranks and of tokens before the batch: its first row
    std::uint32_t* blocks;    // [W] how many blocks each source has
    std::uint32_t* experts;   // [E] rows of all tokens, by expert
    std::uint32_t* received;  // [E_r] rows received, by local expert
    std::uint32_t* by_warp;   // [warps][W] rows of each placing warp's tokens of the batch
    Copy* copies;             // [batch][K] where each token of the batch goes
    std::int32_t* count;      // [batch] to how many ranks
    std::uint64_t* ranks;     // [batch] the first 64 ranks it goes to, as bits
    std::byte** targets;      // [K] of this warp: the rows of the token it is at
  };

  //! How many tokens a block places at once: their copies lie in its scratch.
  [[nodiscard]] static MORI_EP_HD constexpr std::int32_t batch_tokens(std::int32_t topk) noexcept {
    return topk <= 8 ? 128 : 1024 / topk;
  }
  [[nodiscard]] MORI_EP_HD TokenRange first_batch(TokenRange run) const {
    std::int32_t const most = batch_tokens(topk);
    return {run.begin, run.count() < most ? run.end : run.begin + most};
  }

  template <class Ctx>
  MORI_EP_HD Scratch carve(Ctx& ctx) const {
    auto const w = static_cast<std::size_t>(placement.world()), warps = static_cast<std::size_t>(ctx.warps()),
               k = static_cast<std::size_t>(topk), batch = static_cast<std::size_t>(batch_tokens(topk));
    Scratch s;
    s.table = ctx.template shared<std::byte*>(w);
    s.peers = port.peers.with_table(s.table);
    s.targets = ctx.template shared<std::byte*>(warps * k) + static_cast<std::size_t>(ctx.warp()) * k;
    s.copies = ctx.template shared<Copy>(batch * k);
    s.count = ctx.template shared<std::int32_t>(batch);
    s.ranks = ctx.template shared<std::uint64_t>(batch);
    s.flags = ctx.template shared<std::uint32_t>(kFlags);
    s.total = ctx.template shared<std::uint32_t>(2 * w);
    s.before = s.total + w;
    s.blocks = ctx.template shared<std::uint32_t>(w);
    s.by_warp = ctx.template shared<std::uint32_t>(warps * w);
    s.experts = ctx.template shared<std::uint32_t>(2 * static_cast<std::size_t>(placement.experts()));
    s.received = s.experts + placement.experts();
    return s;
  }

  //! The words that the blocks of `source` write on `peer`.
  MORI_EP_HD std::uint64_t* rows_arrived(const Scratch& s, std::int32_t peer, std::int32_t source) const {
    return s.peers.template at<std::uint64_t>(peer, set.rows_arrived) +
           static_cast<std::ptrdiff_t>(source) * kMaxBlocks;
  }
  MORI_EP_HD const Index* ids_of(std::int32_t token) const {
    return ids + static_cast<std::size_t>(token) * ids_stride;
  }

  MORI_EP_HD const std::byte* row_of(std::int32_t token) const {
    return x + static_cast<std::size_t>(token) * x_stride;
  }

  //! The ranks of one window that token t goes to, as bits; none past the last token. Several ids are read before the
  //! first is looked at: on a GPU the reads are what takes time.
  template <class Ctx>
  MORI_EP_HD std::uint64_t ranks_of(Ctx& ctx, std::int32_t t, std::int32_t end, std::int32_t window) const {
    constexpr std::int32_t kAtOnce = 8;
    std::uint64_t ranks = 0;
    for (std::int32_t first = 0; first < topk && t < end; first += kAtOnce) {
      Index id[kAtOnce];
      MORI_EP_UNROLL
      for (std::int32_t k = 0; k < kAtOnce; ++k)
        id[k] = first + k < topk ? ctx.load(ids_of(t) + first + k) : static_cast<Index>(routing::kNoExpert);
      MORI_EP_UNROLL
      for (std::int32_t k = 0; k < kAtOnce; ++k) ranks |= routing::window_bit(placement.rank_of(id[k]), window);
    }
    return ranks;
  }

  //! Every block counts the rows of all tokens, those before its own, and the rows per expert for the peers that it will
  //! tell.
  template <class Ctx>
  MORI_EP_HD void count_rows(Ctx& ctx, const Scratch& s, std::int32_t count, std::int32_t begin,
                             std::uint64_t first_ranks) const {
    for (std::int32_t at = ctx.warp() * Ctx::lanes; at < count; at += threads(ctx)) {
      std::int32_t const t = at + ctx.lane();
      for (std::int32_t window = 0; 64 * window < placement.world(); ++window) {
        bool const loaded = at < threads(ctx) && window == 0;
        ctx.for_each_vote(loaded ? first_ranks : ranks_of(ctx, t, count, window), t < begin,
                          [&](std::int32_t bit, std::uint32_t rows, std::uint32_t earlier) {
                            ctx.shared_add(s.total + 64 * window + bit, rows);
                            if (earlier != 0) ctx.shared_add(s.before + 64 * window + bit, earlier);
                          });
      }
    }
    if (ctx.block() < placement.world()) count_experts(ctx, s, count);
    ctx.block_sync();
  }

  //! One row per expert that a token names; ids that name nothing, but are not kNoExpert, are told apart. One id per
  //! thread.
  template <class Ctx>
  MORI_EP_HD void count_experts(Ctx& ctx, const Scratch& s, std::int32_t count) const {
    bool const one_peer_each = ctx.blocks() >= placement.world();
    for (std::int32_t i = thread(ctx); i < count * topk; i += threads(ctx)) {
      std::int32_t const t = i / topk, k = i - t * topk;
      const Index* row = ids_of(t);
      Index const id = ctx.load(row + k);
      std::int32_t const rank = placement.rank_of(id);
      bool const told_here = one_peer_each ? rank == ctx.block() : rank % ctx.blocks() == ctx.block();
      if (rank < 0) {
        if (ctx.block() == 0 && id != static_cast<Index>(routing::kNoExpert)) ctx.shared_add(s.flags + kInvalid, 1u);
      } else if (told_here && routing::first_mention(row, k)) {
        ctx.shared_add(s.experts + id, 1u);
      }
    }
  }

  //! The blocks share the peers out. The counts order what this rank's stream did before this launch (reading the rows
  //! of the last epoch) before a peer sees this epoch; the other words are whole by themselves.
  template <class Ctx>
  MORI_EP_HD void announce_counts(Ctx& ctx, const Scratch& s, std::uint32_t epoch) const {
    std::int32_t const world = placement.world(), local_experts = placement.experts_per_rank(), me = port.peers.rank;
    for (std::int32_t peer = ctx.block(); peer < world; peer += ctx.blocks()) {
      auto* rows = counts_of(s, peer, me);
      auto* experts =
          s.peers.template at<std::uint64_t>(peer, set.expert_counts) + static_cast<std::ptrdiff_t>(me) * local_experts;
      for (std::int32_t i = thread(ctx); i <= world + local_experts; i += threads(ctx)) {
        if (i < world)
          ctx.signal_after_launch(rows + i, epoch, s.total[i]);
        else if (i == world)
          ctx.post(rows + i, epoch, static_cast<std::uint32_t>(ctx.blocks()));
        else
          ctx.post(experts + (i - world - 1), epoch, s.experts[peer * local_experts + (i - world - 1)]);
      }
    }
  }
  //! What `source` tells `peer`: its rows for each rank, then how many blocks it has.
  MORI_EP_HD std::uint64_t* counts_of(const Scratch& s, std::int32_t peer, std::int32_t source) const {
    return s.peers.template at<std::uint64_t>(peer, set.counts) +
           static_cast<std::ptrdiff_t>(source) * (placement.world() + 1);
  }

  //! Acquires all counts and turns them into this block's first rows; block 0 hears the expert counts as well. False when
  //! a peer did not come.
  template <class Ctx>
  MORI_EP_HD bool hear_counts(Ctx& ctx, const Scratch& s, std::uint32_t epoch) const {
    std::int32_t const world = placement.world(), me = port.peers.rank, local_experts = placement.experts_per_rank();
    auto* counts = counts_of(s, me, 0);
    auto* experts = port.peers.template mine<std::uint64_t>(set.expert_counts);
    std::int32_t const words = world * (world + 1), all = words + (ctx.block() == 0 ? world * local_experts : 0);
    for (std::int32_t i = thread(ctx); i < all; i += threads(ctx)) {
      bool const by_expert = i >= words;
      std::int32_t const source = by_expert ? (i - words) / local_experts : i / (world + 1);
      std::uint32_t payload = 0;
      if (!port.await(ctx, by_expert ? experts + (i - words) : counts + i, epoch, Phase::dispatch_counts, source,
                      &payload, by_expert ? exec::WaitOrder::none : exec::WaitOrder::acquire)) {
        ctx.shared_add(s.flags + kUnheard, 1u);
        break;
      }
      if (by_expert) {
        ctx.shared_add(s.received + (i - words) % local_experts, payload);
        continue;
      }
      std::int32_t const destination = i % (world + 1);
      if (destination == world) {
        s.blocks[source] = payload;
        continue;
      }
      if (source < me) ctx.shared_add(s.before + destination, payload);
      if (destination == me) ctx.shared_add(s.flags + kReceived, payload);
    }
    ctx.block_sync();
    return s.flags[kUnheard] == 0;
  }

  //! How many warps it takes to place a batch, a token per lane; on a machine of few lanes, all of them.
  template <class Ctx>
  static MORI_EP_HD std::int32_t placers(Ctx& ctx, TokenRange batch) {
    std::int32_t const wanted = (batch.count() + Ctx::lanes - 1) / Ctx::lanes;
    return wanted < ctx.warps() ? wanted : ctx.warps();
  }
  //! The tokens of a batch that this warp places; it takes `lanes` of them at a time.
  template <class Ctx>
  static MORI_EP_HD TokenRange placed_here(Ctx& ctx, TokenRange batch) {
    std::int32_t const warps = placers(ctx, batch);
    if (ctx.warp() >= warps) return {batch.end, batch.end};
    return TokenRange::part(batch.begin, batch.count(), ctx.warp(), warps);
  }

  //! How many rows each placing warp's tokens of the batch make, by destination.
  template <class Ctx>
  MORI_EP_HD void count_batch(Ctx& ctx, const Scratch& s, TokenRange batch) const {
    TokenRange const mine = placed_here(ctx, batch);
    if (mine.count() == 0) return;
    std::uint32_t* rows_of_warp = s.by_warp + static_cast<std::ptrdiff_t>(ctx.warp()) * placement.world();
    for (std::int32_t d = ctx.lane(); d < placement.world(); d += Ctx::lanes) rows_of_warp[d] = 0;
    ctx.warp_sync();
    for (std::int32_t at = mine.begin; at < mine.end; at += Ctx::lanes)
      for (std::int32_t window = 0; 64 * window < placement.world(); ++window) {
        std::int32_t const t = at + ctx.lane();
        std::uint64_t const ranks = ranks_of(ctx, t, mine.end, window);
        if (window == 0 && t < mine.end) s.ranks[t - batch.begin] = ranks;
        ctx.for_each_vote(ranks, false, [&](std::int32_t bit, std::uint32_t rows, std::uint32_t) {
          rows_of_warp[64 * window + bit] += rows;
        });
      }
  }

  template <class Ctx>
  MORI_EP_HD void prefetch(Ctx& ctx, TokenRange batch) const {
    WarpShare const share = WarpShare::of(ctx.warp(), ctx.warps(), batch.count());
    TokenRange const mine = share.of_run(batch);
    if (mine.count() > 0) ctx.prefetch_row(row_of(mine.begin), row_bytes, share.part, share.parts);
  }

  //! Gives every token of the batch its row on each of its ranks, one token per lane; then the batch's rows are behind.
  template <class Ctx>
  MORI_EP_HD void place_batch(Ctx& ctx, const Scratch& s, TokenRange batch) const {
    std::int32_t const world = placement.world();
    TokenRange const mine = placed_here(ctx, batch);
    for (std::int32_t i = thread(ctx); i < batch.count(); i += threads(ctx)) s.count[i] = 0;
    // by_warp becomes each warp's first row; `before` moves past the batch.
    for (std::int32_t d = thread(ctx); d < world; d += threads(ctx)) {
      std::uint32_t row = s.before[d];
      for (std::int32_t w = 0; w < placers(ctx, batch); ++w) {
        std::uint32_t const rows = s.by_warp[w * world + d];
        s.by_warp[w * world + d] = row;
        row += rows;
      }
      s.before[d] = row;
    }
    ctx.block_sync();
    std::uint32_t* next = s.by_warp + static_cast<std::ptrdiff_t>(ctx.warp()) * world;
    for (std::int32_t at = mine.begin; at < mine.end; at += Ctx::lanes) {
      ctx.warp_sync();
      std::int32_t const t = at + ctx.lane(), slot = t - batch.begin;
      for (std::int32_t window = 0; 64 * window < world; ++window) {
        std::uint64_t const ranks = window != 0 ? ranks_of(ctx, t, mine.end, window) : t < mine.end ? s.ranks[slot] : 0;
        ctx.for_each_rank(ranks, [&](std::int32_t bit, bool goes, std::uint32_t earlier, std::uint32_t rows) {
          std::int32_t const d = 64 * window + bit;
          std::uint32_t const row = next[d] + earlier;
          if (goes && row < static_cast<std::uint32_t>(capacity))
            s.copies[slot * topk + s.count[slot]++] = Copy{d, row};
          ctx.warp_sync();
          if (ctx.lane() == 0) next[d] += rows;
        });
      }
    }
    ctx.block_sync();
  }

  //! The payload: the warps of a group share each row.
  template <class Ctx>
  MORI_EP_HD void send_rows(Ctx& ctx, const Scratch& s, TokenRange batch) const {
    WarpShare const share = WarpShare::of(ctx.warp(), ctx.warps(), batch.count());
    TokenRange const mine = share.of_run(batch);
    for (std::int32_t t = mine.begin; t < mine.end; ++t) {
      std::int32_t const slot = t - batch.begin, copies = s.count[slot];
      ctx.warp_sync();
      for (std::int32_t c = ctx.lane(); c < copies; c += Ctx::lanes) {
        Copy const copy = s.copies[slot * topk + c];
        s.targets[c] =
            s.peers.template at<std::byte>(copy.rank, set.recv_x) + static_cast<std::size_t>(copy.row) * row_bytes;
      }
      ctx.warp_sync();
      ctx.multicast_row(row_of(t), s.targets, copies, row_bytes, share.part, share.parts);
    }
  }

  //! What travels beside the rows: source position, ids, weights, scales; and the ticket: where each copy went, for
  //! combine, and the ids and weights, for replay. A copy per thread: what lies side by side is written at about the same
  //! time and leaves the cache together.
  template <class Ctx>
  MORI_EP_HD void send_metadata(Ctx& ctx, const Scratch& s, TokenRange batch) const {
    auto const k = static_cast<std::size_t>(topk);
    for (std::int32_t i = thread(ctx); i < batch.count() * topk; i += threads(ctx)) {
      std::int32_t const slot = i / topk, c = i - slot * topk, t = batch.begin + slot, copies = s.count[slot];
      auto const token = static_cast<std::size_t>(t);
      const Index* row_ids = ids_of(t);
      const float* row_weights = weights == nullptr ? nullptr : weights + token * weights_stride;
      auto* routes = port.peers.template mine<routing::RouteEntry>(set.routes) +
                     token * static_cast<std::size_t>(routes_per_token);
      if (c < copies) {
        Copy const copy = s.copies[i];
        ctx.store(s.peers.template at<std::int32_t>(copy.rank, set.recv_src_pos) + copy.row,
                  port.peers.rank * max_tokens + t);
        ctx.copy_own(s.peers.template at<Index>(copy.rank, set.recv_ids) + copy.row * k, row_ids, k * sizeof(Index));
        if (row_weights != nullptr)
          ctx.copy_own(s.peers.template at<float>(copy.rank, set.recv_weights) + copy.row * k, row_weights,
                       k * sizeof(float));
        if (scales != nullptr)
          ctx.copy_own(s.peers.template at<std::byte>(copy.rank, set.recv_scales) + copy.row * scale_bytes,
                       scales + token * scales_stride, scale_bytes);
        ctx.store(routes + c, routing::RouteEntry{copy.rank, static_cast<std::int32_t>(copy.row),
                                                  weight_of(ctx, row_ids, row_weights, copy.rank)});
      } else if (c < routes_per_token) {
        ctx.store(routes + c, routing::RouteEntry{});
      }
      ctx.store(port.peers.template mine<Index>(set.sent_ids) + token * k + c, ctx.load(row_ids + c));
      if (row_weights != nullptr)
        ctx.store(port.peers.template mine<float>(set.sent_weights) + token * k + c, ctx.load(row_weights + c));
    }
  }
  template <class Ctx>
  MORI_EP_HD float weight_of(Ctx& ctx, const Index* row_ids, const float* row_weights, std::int32_t rank) const {
    float sum = 0;
    if constexpr (Weighted)
      if (row_weights != nullptr)
        for (std::int32_t i = 0; i < topk; ++i)
          if (placement.rank_of(ctx.load(row_ids + i)) == rank) sum += ctx.load(row_weights + i);
    return sum;
  }

  //! Block 0: what this rank receives, in all and by expert, and from how many blocks.
  template <class Ctx>
  MORI_EP_HD void account(Ctx& ctx, const Scratch& s, SetState* state, std::int32_t count) const {
    std::int64_t const total = s.flags[kReceived], kept = total < capacity ? total : capacity;
    if (thread(ctx) == 0) {
      ctx.store(&state->totals, routing::RecvTotals{static_cast<std::int32_t>(kept), 0, total, total - kept,
                                                    static_cast<std::int64_t>(s.flags[kInvalid])});
      ctx.store(&state->tokens, count);
    }
    for (std::int32_t source = thread(ctx); source < placement.world(); source += threads(ctx))
      ctx.store(port.peers.template mine<std::uint32_t>(set.source_blocks) + source, s.blocks[source]);
    for (std::int32_t e = thread(ctx); e < placement.experts_per_rank(); e += threads(ctx))
      ctx.store(port.peers.template mine<std::int32_t>(set.expert_count) + e, static_cast<std::int32_t>(s.received[e]));
  }

  //! Block 0: waits for the rows of every block of every source, or of its own rank when only sending; then the dispatch
  //! is done and the epoch advances.
  template <class Ctx>
  MORI_EP_HD void finish(Ctx& ctx, const Scratch& s, SetState* state, std::uint32_t epoch, bool ok) const {
    if (ok) {
      std::int32_t const me = port.peers.rank;
      bool const all = has(halves, Half::recv);
      std::int32_t const first = all ? 0 : me, end = all ? placement.world() : me + 1;
      if (!has(halves, Half::send)) {
        for (std::int32_t source = thread(ctx); source < end; source += threads(ctx))
          s.blocks[source] = ctx.load(port.peers.template mine<std::uint32_t>(set.source_blocks) + source);
        ctx.block_sync();
      }
      // Thread i takes the i-th word of all sources' words laid end to end.
      auto at = static_cast<std::uint32_t>(thread(ctx));
      for (std::int32_t source = first; source < end;) {
        std::uint32_t const words = s.blocks[source];
        if (at >= words) {
          at -= words;
          ++source;
          continue;
        }
        if (!port.await(ctx, rows_arrived(s, me, source) + at, epoch, Phase::dispatch_rows, source)) {
          ctx.shared_add(s.flags + kMissing, 1u);
          break;
        }
        at += static_cast<std::uint32_t>(threads(ctx));
      }
      ctx.block_sync();
      ok = s.flags[kMissing] == 0;
    }
    if (ok && has(halves, Half::send) && thread(ctx) == 0) ctx.store(&state->epoch, epoch);
    if (ok && has(halves, Half::recv) && ctx.warp() == 0 && dropped(ctx, s, state)) recount_experts(ctx, state);
    if (!ok && ctx.warp() == 0) forget_rows(ctx, state);
  }
  template <class Ctx>
  MORI_EP_HD bool dropped(Ctx& ctx, const Scratch& s, SetState* state) const {
    if (has(halves, Half::send)) return s.flags[kReceived] > static_cast<std::uint32_t>(capacity);
    return ctx.load(&state->totals.dropped) != 0;
  }

  //! Rows were dropped, so the sources' expert counts are too high: counts the rows that are here.
  template <class Ctx>
  MORI_EP_HD void recount_experts(Ctx& ctx, SetState* state) const {
    std::int32_t const rows = ctx.load(&state->totals.recv_count), local_experts = placement.experts_per_rank();
    auto* expert_count = port.peers.template mine<std::int32_t>(set.expert_count);
    const Index* recv_ids = port.peers.template mine<Index>(set.recv_ids);
    for (std::int32_t e = ctx.lane(); e < local_experts; e += Ctx::lanes) {
      auto const id = static_cast<Index>(port.peers.rank * local_experts + e);
      std::int32_t named = 0;
      for (std::int32_t r = 0; r < rows; ++r) {
        const Index* row = recv_ids + static_cast<std::size_t>(r) * static_cast<std::size_t>(topk);
        bool names = false;
        for (std::int32_t k = 0; k < topk; ++k) names |= ctx.load(row + k) == id;
        named += names ? 1 : 0;
      }
      ctx.store(expert_count + e, named);
    }
  }

  //! After a fault nobody may take stale rows for fresh ones.
  template <class Ctx>
  MORI_EP_HD void forget_rows(Ctx& ctx, SetState* state) const {
    auto* expert_count = port.peers.template mine<std::int32_t>(set.expert_count);
    if (ctx.lane() == 0) ctx.store(&state->totals.recv_count, 0);
    for (std::int32_t e = ctx.lane(); e < placement.experts_per_rank(); e += Ctx::lanes) ctx.store(expert_count + e, 0);
  }
};

}  // namespace mori_ep::schedule::intra_node
