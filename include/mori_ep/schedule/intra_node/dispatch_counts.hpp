// SPDX-License-Identifier: MIT
//! @file The count exchange of a dispatch: from expert ids to the first row of this block's tokens on every rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/schedule/intra_node/dispatch_args.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One block's part in it. The steps in order: `count`, a block_sync, `share` when the blocks share the counting,
//!        `announce` by the blocks that tell a peer, `hear` by those that must know.
template <class PeerRef, routing::IndexType Index>
struct CountExchange {
  using Scratch = DispatchScratch<PeerRef>;

  const DispatchArgs<PeerRef, Index>& args;
  const Scratch& s;
  std::uint32_t epoch;
  std::int32_t count;  // this rank's tokens
  TokenRange run;      // this block's
  bool shared;         // does every block count its own tokens only?

  //! @brief This block tells a peer, and must know all of this rank's counts for it.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD bool announces(Ctx& ctx) const {
    return ctx.block() < args.placement.world();
  }

  //! @brief Counts rows by destination, warp by warp: of this block's tokens, or of all and of those before them. Keeps
  //!        the first `batch` tokens' ranks for placing.
  template <class Ctx>
  MORI_EP_HD void count_rows(Ctx& ctx, TokenRange batch) const {
    std::int32_t const world = args.placement.world();
    std::uint32_t* all = s.by_warp + static_cast<std::ptrdiff_t>(ctx.warp()) * world;
    std::uint32_t* earlier = s.earlier + static_cast<std::ptrdiff_t>(ctx.warp()) * world;
    for (std::int32_t d = ctx.lane(); d < world; d += Ctx::lanes) all[d] = earlier[d] = 0;
    ctx.warp_sync();
    std::int32_t const begin = shared ? run.begin : 0, end = shared ? run.end : count;
    for (std::int32_t at = begin + ctx.warp() * Ctx::lanes; at < end; at += threads(ctx)) {
      std::int32_t const t = at + ctx.lane();
      for (std::int32_t window = 0; 64 * window < world; ++window) {
        std::uint64_t const ranks = args.ranks_of(ctx, t, end, window);
        if (window == 0 && t >= batch.begin && t < batch.end) s.ranks[t - batch.begin] = ranks;
        ctx.for_each_vote(ranks, t < run.begin, [&](std::int32_t bit, std::uint32_t rows, std::uint32_t before) {
          all[64 * window + bit] += rows;
          earlier[64 * window + bit] += before;
        });
      }
    }
  }

  //! @brief After the block has met: this block's tokens start behind those before them.
  template <class Ctx>
  MORI_EP_HD void fold_earlier(Ctx& ctx) const {
    for (std::int32_t d = thread(ctx); d < args.placement.world(); d += threads(ctx))
      ctx.shared_add(s.before + d, over_warps(ctx, s.earlier, d));
  }

  //! @brief The blocks of this rank tell each other their counts, as words that are whole by themselves. False when one
  //!        did not come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD bool share(Ctx& ctx) const {
    std::int32_t const world = args.placement.world(), me = args.port.peers.rank;
    auto* words = s.peers.template at<std::uint64_t>(me, args.set.block_counts);
    for (std::int32_t d = thread(ctx); d < world; d += threads(ctx))
      ctx.post(words + static_cast<std::ptrdiff_t>(ctx.block()) * world + d, epoch, over_warps(ctx, s.by_warp, d));
    for (std::int32_t i = thread(ctx); i < ctx.blocks() * world; i += threads(ctx)) {
      std::uint32_t rows = 0;
      if (!args.port.await(ctx, words + i, epoch, Phase::dispatch_counts, me, &rows, exec::WaitOrder::none)) {
        ctx.shared_add(s.flags + Scratch::kUnheard, 1u);
        break;
      }
      std::int32_t const block = i / world, d = i - block * world;
      ctx.shared_add(s.total + d, rows);
      if (block < ctx.block()) ctx.shared_add(s.before + d, rows);
    }
    ctx.block_sync();
    return s.flags[Scratch::kUnheard] == 0;
  }

  //! @brief The blocks share the peers out. The counts order what this rank's stream did before this launch (reading the
  //!        rows of the last epoch) before a peer sees this epoch.
  template <class Ctx>
  MORI_EP_HD void announce_rows(Ctx& ctx) const {
    std::int32_t const world = args.placement.world(), me = args.port.peers.rank;
    auto const senders = static_cast<std::uint32_t>(count < ctx.blocks() ? count : ctx.blocks());
    for (std::int32_t i = thread(ctx); i <= world; i += threads(ctx)) {
      std::uint32_t const payload = i == world ? senders : shared ? s.total[i] : over_warps(ctx, s.by_warp, i);
      for (std::int32_t peer = ctx.block(); peer < world; peer += ctx.blocks())
        ctx.signal_after_launch(args.counts_of(s.peers, peer, me, epoch) + i, epoch, payload);
    }
  }

  //! @brief One row per expert that a token names, for the experts of the peers that this block tells, in words that are
  //!        whole by themselves; block 0 also counts the ids that name nothing, but are not kNoExpert.
  template <class Ctx>
  MORI_EP_HD void announce_experts(Ctx& ctx) const {
    std::int32_t const world = args.placement.world(), me = args.port.peers.rank,
                       local_experts = args.placement.experts_per_rank();
    for (std::int32_t t = thread(ctx); t < count; t += threads(ctx))
      for (std::int32_t first = 0; first < args.topk; first += Args::kIdsAtOnce) count_experts(ctx, t, first);
    ctx.block_sync();
    for (std::int32_t peer = ctx.block(); peer < world; peer += ctx.blocks()) {
      auto* words = args.expert_counts_of(s.peers, peer, me, epoch);
      for (std::int32_t e = thread(ctx); e < local_experts; e += threads(ctx))
        ctx.post(words + e, epoch, s.experts[peer * local_experts + e]);
    }
  }

  //! @brief Acquires all counts: adds the rows of earlier ranks to `before`, and what comes here. False when a peer did
  //!        not come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD bool hear(Ctx& ctx) const {
    std::int32_t const world = args.placement.world(), me = args.port.peers.rank;
    auto* words = args.counts_of(s.peers, me, 0, epoch);
    for (std::int32_t i = thread(ctx); i < world * (world + 1); i += threads(ctx)) {
      std::int32_t const source = i / (world + 1), d = i - source * (world + 1);
      std::uint32_t payload = 0;
      if (!args.port.await(ctx, words + i, epoch, Phase::dispatch_counts, source, &payload)) {
        ctx.shared_add(s.flags + Scratch::kUnheard, 1u);
        break;
      }
      if (d == world) {
        s.blocks[source] = payload;
        continue;
      }
      if (source < me) ctx.shared_add(s.before + d, payload);
      if (d == me) {
        s.rows[source] = payload;
        ctx.shared_add(s.flags + Scratch::kReceived, payload);
      }
    }
    ctx.block_sync();
    return s.flags[Scratch::kUnheard] == 0;
  }

 private:
  using Args = DispatchArgs<PeerRef, Index>;

  template <class Ctx>
  [[nodiscard]] MORI_EP_HD std::uint32_t over_warps(Ctx& ctx, const std::uint32_t* counts, std::int32_t d) const {
    std::uint32_t sum = 0;
    for (std::int32_t w = 0; w < ctx.warps(); ++w) sum += counts[w * args.placement.world() + d];
    return sum;
  }

  template <class Ctx>
  MORI_EP_HD void count_experts(Ctx& ctx, std::int32_t t, std::int32_t first) const {
    bool const one_peer = ctx.blocks() >= args.placement.world();
    Index id[Args::kIdsAtOnce];
    args.read_ids(ctx, t, first, id);
    MORI_EP_UNROLL
    for (std::int32_t k = 0; k < Args::kIdsAtOnce; ++k) {
      std::int32_t const rank = args.placement.rank_of(id[k]);
      if (rank < 0) {
        if (ctx.block() == 0 && id[k] != static_cast<Index>(routing::kNoExpert))
          ctx.shared_add(s.flags + Scratch::kInvalid, 1u);
        continue;
      }
      if (one_peer ? rank != ctx.block() : rank % ctx.blocks() != ctx.block()) continue;
      bool named = routing::named_before(args.ids_of(t), first, id[k]);
      MORI_EP_UNROLL
      for (std::int32_t j = 0; j < k; ++j) named |= id[j] == id[k];
      if (!named) ctx.shared_add(s.experts + id[k], 1u);
    }
  }
};

}  // namespace mori_ep::schedule::intra_node
