// SPDX-License-Identifier: MIT
//! @file The count exchange of a dispatch: from expert ids to the first row of this block's tokens on every rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/schedule/intra_node/dispatch_args.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One block's part in it. The steps in order: `count_rows`, a block_sync, `share` or `fold_earlier`,
//!        `announce_rows` and `announce_experts` by the blocks that tell a peer, `hear` by those that must know, and
//!        `tally_experts` instead of announce_experts when the blocks share the counting.
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

  //! @brief The ranks, of the first 64, that the first token goes to which this thread counts: read early, since on a GPU
  //!        the reads are what takes time.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD std::uint64_t first_ranks(Ctx& ctx) const {
    return args.ranks_of(ctx, (shared ? run.begin : 0) + thread(ctx), shared ? run.end : count, 0);
  }

  //! @brief Counts rows by destination, warp by warp: of this block's tokens, or of all and of those before them. Keeps
  //!        the ranks of the first `batch` tokens for placing.
  template <class Ctx>
  MORI_EP_HD void count_rows(Ctx& ctx, TokenRange batch, std::uint64_t first) const {
    std::int32_t const world = args.placement.world(), most = Scratch::batch_tokens(args.topk);
    std::uint32_t* all = s.by_warp + static_cast<std::ptrdiff_t>(ctx.warp()) * world;
    std::uint32_t* earlier = s.earlier + static_cast<std::ptrdiff_t>(ctx.warp()) * world;
    by_lane(ctx, world, [&](std::int32_t d) { all[d] = earlier[d] = 0; });
    ctx.warp_sync();
    std::int32_t const begin = shared ? run.begin : 0, end = shared ? run.end : count;
    MORI_EP_ROLLED
    for (std::int32_t at = begin + ctx.warp() * Ctx::lanes; at < end; at += threads(ctx)) {
      std::int32_t const t = at + ctx.lane();
      MORI_EP_ROLLED
      for (std::int32_t window = 0; 64 * window < world; ++window) {
        std::uint64_t const ranks =
            window == 0 && t == begin + thread(ctx) ? first : args.ranks_of(ctx, t, end, window);
        if (t >= batch.begin && t < batch.end) s.ranks[window * most + t - batch.begin] = ranks;
        ctx.for_each_vote(ranks, [&](std::int32_t bit, std::uint64_t voters) {
          all[64 * window + bit] += static_cast<std::uint32_t>(routing::count_bits(voters));
          earlier[64 * window + bit] +=
              static_cast<std::uint32_t>(routing::count_bits(voters & routing::low_bits(run.begin - at)));
        });
      }
    }
  }

  //! @brief After the block has met: this block's tokens start behind those before them.
  template <class Ctx>
  MORI_EP_HD void fold_earlier(Ctx& ctx) const {
    by_thread(ctx, args.placement.world(),
              [&](std::int32_t d) { ctx.shared_add(s.before + d, over_warps(ctx, s.earlier, d)); });
  }

  //! @brief The blocks of this rank tell each other their counts, as words that are whole by themselves. False when one
  //!        did not come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD bool share(Ctx& ctx) const {
    std::int32_t const world = args.placement.world(), me = args.port.peers.rank;
    auto* words = s.peers.template at<std::uint64_t>(me, args.set.block_counts);
    by_thread(ctx, world, [&](std::int32_t d) {
      ctx.post(words + static_cast<std::ptrdiff_t>(ctx.block()) * world + d, epoch, over_warps(ctx, s.by_warp, d));
    });
    MORI_EP_ROLLED
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
    by_thread(ctx, world + 1, [&](std::int32_t i) {
      std::uint32_t const payload = i == world ? senders : shared ? s.total[i] : over_warps(ctx, s.by_warp, i);
      MORI_EP_ROLLED
      for (std::int32_t peer = ctx.block(); peer < world; peer += ctx.blocks())
        ctx.signal_after_launch(args.counts_of(s.peers, peer, me, epoch) + i, epoch, payload);
    });
  }

  //! @brief One row per expert that a token names, for the experts of the peers that this block tells, and the ids that
  //!        name nothing but are not kNoExpert, in words that are whole by themselves. For blocks that count all tokens.
  template <class Ctx>
  MORI_EP_HD void announce_experts(Ctx& ctx) const {
    std::int32_t const world = args.placement.world(), local_experts = args.placement.experts_per_rank();
    bool const one_peer = ctx.blocks() >= world;
    for_each_expert(ctx, 0, count, thread(ctx), threads(ctx), [&](Index id, std::int32_t rank) {
      if (rank < 0)
        ctx.shared_add(s.flags + Scratch::kInvalid, 1u);
      else if (one_peer ? rank == ctx.block() : rank % ctx.blocks() == ctx.block())
        ctx.shared_add(s.experts + id, 1u);
    });
    ctx.block_sync();
    MORI_EP_ROLLED
    for (std::int32_t peer = ctx.block(); peer < world; peer += ctx.blocks()) {
      auto* words = args.expert_counts_of(s.peers, peer, args.port.peers.rank, epoch);
      by_thread(ctx, local_experts + 1, [&](std::int32_t e) {
        ctx.post(words + e, epoch,
                 e == local_experts ? s.flags[Scratch::kInvalid] : s.experts[peer * local_experts + e]);
      });
    }
  }

  //! @brief The same when the blocks share the counting, by one warp of each: a tally in this rank's memory, and the last
  //!        block's warp tells the peers. Its arrival acquires what the others tallied before theirs.
  template <class Ctx>
  MORI_EP_HD void tally_experts(Ctx& ctx, SetState* state) const {
    std::int32_t const experts = args.placement.experts(), local_experts = args.placement.experts_per_rank();
    auto* tally = s.peers.template at<std::uint32_t>(args.port.peers.rank, args.set.expert_tally);
    for_each_expert(ctx, run.begin, run.end, ctx.lane(), Ctx::lanes, [&](Index id, std::int32_t rank) {
      ctx.tally(tally + (rank < 0 ? static_cast<Index>(experts) : id), 1u);
    });
    ctx.warp_sync();
    if (ctx.lane() == 0) s.flags[Scratch::kLast] = ctx.arrive(&state->blocks_tallied) ? 1 : 0;
    ctx.warp_sync();
    if (s.flags[Scratch::kLast] == 0) return;
    std::uint32_t const invalid = ctx.load(tally + experts);
    by_lane(ctx, experts + args.placement.world(), [&](std::int32_t i) {
      bool const expert = i < experts;
      std::int32_t const peer = expert ? i / local_experts : i - experts;
      auto* words = args.expert_counts_of(s.peers, peer, args.port.peers.rank, epoch);
      ctx.post(words + (expert ? i - peer * local_experts : local_experts), epoch,
               expert ? ctx.load(tally + i) : invalid);
    });
    ctx.warp_sync();
    by_lane(ctx, experts + 1, [&](std::int32_t i) { ctx.store(tally + i, 0u); });
  }

  //! @brief Acquires all counts: adds the rows of earlier ranks to `before`, and what comes here. False when a peer did
  //!        not come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD bool hear(Ctx& ctx) const {
    std::int32_t const world = args.placement.world(), me = args.port.peers.rank;
    auto* words = args.counts_of(s.peers, me, 0, epoch);
    MORI_EP_ROLLED
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
    MORI_EP_ROLLED
    for (std::int32_t w = 0; w < ctx.warps(); ++w) sum += counts[w * args.placement.world() + d];
    return sum;
  }

  //! Calls `visit(id, rank)` for each distinct expert that each token names, and for ids that name nothing (rank -1);
  //! tokens [begin, end) from the `first`-th on, every `step`-th.
  template <class Ctx, class Visit>
  MORI_EP_HD void for_each_expert(Ctx& ctx, std::int32_t begin, std::int32_t end, std::int32_t first, std::int32_t step,
                                  Visit&& visit) const {
    MORI_EP_ROLLED
    for (std::int32_t t = begin + first; t < end; t += step) {
      const Index* row = args.ids_of(t);
      MORI_EP_ROLLED
      for (std::int32_t k = 0; k < args.topk; ++k) {
        Index const id = ctx.load(row + k);
        if (id == static_cast<Index>(routing::kNoExpert)) continue;
        std::int32_t const rank = args.placement.rank_of(id);
        if (rank < 0 || !routing::named_before(row, k, id)) visit(id, rank);
      }
    }
  }
};

}  // namespace mori_ep::schedule::intra_node
