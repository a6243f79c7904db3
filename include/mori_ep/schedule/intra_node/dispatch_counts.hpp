// SPDX-License-Identifier: MIT
//! @file The count exchange of a dispatch: from expert ids to the first row of each tile of tokens on every rank.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/schedule/intra_node/dispatch_args.hpp"
#include "mori_ep/schedule/intra_node/relay.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One block's part in it. The steps in order: `vote`; `hear_votes` when the blocks share the counting, else a
//!        block_sync; `announce` by the blocks that tell a peer, `number` and `hear` by those that must know;
//!        `tally_experts` when shared; `hear_experts` by one block.
template <class PeerRef, routing::IndexType Index>
struct CountExchange {
  using Args = DispatchArgs<PeerRef, Index>;
  using Scratch = DispatchScratch<PeerRef>;

  const Args& args;
  const Scratch& s;
  std::uint32_t epoch;
  std::int32_t count;  // this rank's tokens
  bool shared;         // does every block count some tokens only?

  //! @brief This block tells a peer, and must know all of this rank's counts for it.
  template <class Ctx>
  [[nodiscard]] MORI_EP_BODY MORI_EP_HD bool announces(Ctx& ctx) const {
    return ctx.block() < args.placement.world();
  }

  //! @brief How many tokens a warp counts at once, in whole tiles.
  template <class Ctx>
  static constexpr std::int32_t kChunk = Ctx::lanes > Scratch::kTile ? Ctx::lanes : Scratch::kTile;

  //! @brief The first token that this thread counts, when every block counts all.
  template <class Ctx>
  [[nodiscard]] static MORI_EP_BODY MORI_EP_HD std::int32_t first_token(Ctx& ctx) {
    return ctx.warp() * kChunk<Ctx> + ctx.lane();
  }

  //! @brief Counts tokens: all of them, or this block's share when the blocks share the counting. `early`: `ids` has
  //!        those of this thread's first token.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void vote(Ctx& ctx, bool early, Index (&ids)[Args::kIdsAtOnce]) const {
    // Marks have room for whole tiles of a warp's lanes.
    static_assert(kChunk<Ctx> % Scratch::kTile == 0 && kChunk<Ctx> <= Scratch::kTilesAtOnce * Scratch::kTile);
    std::int32_t const chunks = (count + kChunk<Ctx> - 1) / kChunk<Ctx>;
    bool const counts_experts = shared || announces(ctx);
    MORI_EP_ROLLED
    for (std::int32_t chunk = shared ? ctx.block() + ctx.blocks() * ctx.warp() : ctx.warp(); chunk < chunks;
         chunk += (shared ? ctx.blocks() : 1) * ctx.warps()) {
      std::int32_t const columns = args.columns(), tile = chunk * (kChunk<Ctx> / Scratch::kTile),
                         marked = kChunk<Ctx> / Scratch::kTile * columns;
      by_lane(ctx, marked, [&](std::int32_t i) { s.marks[i] = 0; });
      ctx.warp_sync();
      MORI_EP_ROLLED
      for (std::int32_t i = ctx.lane(); i < kChunk<Ctx>; i += Ctx::lanes) {
        std::int32_t const t = chunk * kChunk<Ctx> + i;
        std::uint32_t* marks = s.marks + i / Scratch::kTile * columns;
        MORI_EP_ROLLED
        for (std::int32_t from = 0; from < args.topk && t < count; from += Args::kIdsAtOnce, early = false) {
          if (!early) args.read_ids(ctx, t, from, ids);
          MORI_EP_UNROLL
          for (std::int32_t k = 0; k < Args::kIdsAtOnce; ++k)
            if (std::int32_t const rank = args.placement.rank_of(ids[k]); rank >= 0) {
              ctx.warp_or(marks + rank, std::uint32_t{1} << (i % Scratch::kTile));
              if constexpr (PeerRef::kRelays)
                if (args.port.peers.is_far(rank))
                  ctx.warp_or(marks + args.placement.world() + args.far.nodes.of(rank),
                              std::uint32_t{1} << (i % Scratch::kTile));
            }
          if (counts_experts) count_experts(ctx, t, from, ids);
        }
      }
      ctx.warp_sync();
      auto* words = votes_of(tile);
      by_lane(ctx, marked, [&](std::int32_t i) {
        if (!shared)
          s.votes[tile * columns + i] = s.marks[i];
        else if (tile * Scratch::kTile + quotient(i, columns) * Scratch::kTile < count)
          ctx.post(words + i, epoch, s.marks[i]);
      });
      ctx.warp_sync();
    }
  }

  //! @brief The votes that the blocks of this rank have posted, as words that are whole by themselves: adds all to
  //!        `total` and keeps the first window's. False when a block did not come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_BODY MORI_EP_HD bool hear_votes(Ctx& ctx) const {
    std::int32_t const columns = args.columns(), words = tiles_of(count) * columns;
    MORI_EP_ROLLED
    for (std::int32_t i = thread(ctx); i < words; i += threads(ctx)) {
      std::uint32_t votes = 0;
      if (!args.port.await(ctx, votes_of(0) + i, epoch, Phase::dispatch_counts, args.port.peers.rank, &votes,
                           exec::WaitOrder::none)) {
        ctx.shared_add(s.flags + Scratch::kVotesUnheard, 1u);
        break;
      }
      if (i < Scratch::tiles(columns) * columns) s.votes[i] = votes;
      ctx.shared_add(s.total + (i - quotient(i, columns) * columns),
                     static_cast<std::uint32_t>(routing::count_bits(votes)));
    }
    ctx.block_sync();
    return s.flags[Scratch::kVotesUnheard] == 0;
  }

  //! @brief The votes of the window that begins at token `begin`, which is not the first; `before` moves on to it.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void turn_window(Ctx& ctx, std::int32_t begin) const {
    std::int32_t const columns = args.columns(), last = (Scratch::tiles(columns) - 1) * columns;
    ctx.block_sync();
    by_thread(ctx, columns, [&](std::int32_t d) {
      s.before[d] += s.first[last + d] + static_cast<std::uint32_t>(routing::count_bits(s.votes[last + d]));
    });
    ctx.block_sync();
    by_thread(ctx, window_tiles(begin) * columns, [&](std::int32_t i) {
      std::uint32_t votes = 0;  // there, since it has been heard before
      (void)args.port.await(ctx, votes_of(begin / Scratch::kTile) + i, epoch, Phase::dispatch_counts,
                            args.port.peers.rank, &votes, exec::WaitOrder::none);
      s.votes[i] = votes;
    });
    ctx.block_sync();
    number(ctx, begin);
    ctx.block_sync();
  }

  //! @brief Counts the window's rows before each of its tiles. The block has met since the votes came.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void number(Ctx& ctx, std::int32_t begin) const {
    std::int32_t const columns = args.columns(), tiles = window_tiles(begin),
                       runs = (tiles + Scratch::kTilesOfRun - 1) / Scratch::kTilesOfRun;
    auto const walk = [&](std::int32_t i, std::uint32_t rows, bool keeps) {
      std::int32_t const run = quotient(i, columns), d = i - run * columns, end = (run + 1) * Scratch::kTilesOfRun;
      MORI_EP_ROLLED
      for (std::int32_t tile = run * Scratch::kTilesOfRun; tile < tiles && tile < end; ++tile) {
        if (keeps) s.first[tile * columns + d] = rows;
        rows += static_cast<std::uint32_t>(routing::count_bits(s.votes[tile * columns + d]));
      }
      return rows;
    };
    if (runs > 1) {
      by_thread(ctx, runs * columns, [&](std::int32_t i) { s.runs[i] = walk(i, 0, false); });
      ctx.block_sync();
    }
    by_thread(ctx, runs * columns, [&](std::int32_t i) {
      std::uint32_t rows = 0;
      MORI_EP_ROLLED
      for (std::int32_t earlier = i - columns; earlier >= 0; earlier -= columns) rows += s.runs[earlier];
      (void)walk(i, rows, true);
    });
  }

  //! @brief The blocks share the peers out and tell each: the rows for every rank, and, when every block counts, the
  //!        rows for each of the peer's experts and the ids that name nothing but are not kNoExpert, one row per expert
  //!        that a token names. The counts order what this rank's stream did before this launch (reading the rows of
  //!        the last epoch) before a peer sees this epoch; the others are words that are whole by themselves. False when
  //!        a peer did not come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_BODY MORI_EP_HD bool announce(Ctx& ctx) const {
    std::int32_t const world = args.placement.world(), columns = args.columns(),
                       local_experts = args.placement.experts_per_rank();
    MORI_EP_ROLLED
    for (std::int32_t peer = ctx.block(); peer < world; peer += ctx.blocks()) {
      if constexpr (PeerRef::kFar)
        if (args.port.reaches_far(peer)) {
          if (!announce_far(ctx, peer)) return false;
          continue;
        }
      bool const absent = args.port.left_out(peer);
      auto* counts = args.port.tell(
          peer, [&](std::int32_t at, std::int32_t from) { return args.counts_of(s.peers, at, from, epoch); });
      by_thread(ctx, columns + 1, [&](std::int32_t d) {
        ctx.signal_after_launch(counts + d, epoch,
                                absent         ? 0
                                : d == columns ? static_cast<std::uint32_t>(ctx.blocks())
                                               : rows_for(d));
      });
      if (shared) continue;
      auto* words = tell_experts(peer);
      by_thread(ctx, local_experts + 1, [&](std::int32_t e) {
        ctx.post(words + e, epoch,
                 absent               ? 0
                 : e == local_experts ? s.flags[Scratch::kInvalid]
                                      : s.experts[peer * local_experts + e]);
      });
    }
    return true;
  }

  //! @brief The same for a far peer, by the network: words that lie here until it has put them. Its signal says that they
  //!        are there, so they need not be whole by themselves. Instead of the blocks, which no far rank hears one by
  //!        one, it is told where its rows are staged. And it takes this rank to have done with the last combine: so what
  //!        that brings from it is acquired first, also of a ticket that was dropped before it came. False when it does
  //!        not come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_BODY MORI_EP_HD bool announce_far(Ctx& ctx, std::int32_t peer) const {
    std::uint32_t const last = epoch - 1;
    if (ctx.load(&args.port.peers.template mine<SetState>(args.set.state)->combine_sent) == last) {
      if constexpr (PeerRef::kRelays) {
        std::int32_t const node = args.far.nodes.of(peer),
                           end = args.far.nodes.relay(args.port.peers.rank, node) == peer ? node + 1 : node;
        if (!await_sums(ctx, args.port, args.far, last, node, end)) ctx.shared_add(s.flags + Scratch::kUnheard, 1u);
      } else {
        auto* parts = args.port.peers.template mine<std::uint64_t>(args.far.ready) + peer * kFarReturns;
        by_thread(ctx, kFarReturns, [&](std::int32_t i) {
          if (!args.port.await(ctx, parts + i, last, Phase::combine_ready, peer))
            ctx.shared_add(s.flags + Scratch::kUnheard, 1u);
        });
      }
      ctx.block_sync();
      if (s.flags[Scratch::kUnheard] != 0) return false;
    }
    std::int32_t const columns = args.columns(), local_experts = args.placement.experts_per_rank();
    std::uint64_t* const words = args.far_words(peer, epoch);
    by_thread(ctx, columns + 1, [&](std::int32_t d) {
      ctx.store(words + d, exec::signal_word(epoch, d < columns        ? rows_for(d)
                                                    : PeerRef::kRelays ? 0
                                                                       : staged_before(peer)));
    });
    by_thread(ctx, shared ? 0 : local_experts + 1, [&](std::int32_t e) {
      ctx.store(words + columns + 1 + e,
                exec::signal_word(
                    epoch, e == local_experts ? s.flags[Scratch::kInvalid] : s.experts[peer * local_experts + e]));
    });
    ctx.flush_stores();
    ctx.block_sync();
    if (ctx.warp() == 0) {
      tell_far(ctx, peer, Args::kCounts);
      if (!shared) tell_far(ctx, peer, Args::kExperts);
    }
    return true;
  }
  //! @brief This rank's rows for column d, dropped ones too.
  [[nodiscard]] MORI_EP_HD std::uint32_t rows_for(std::int32_t d) const { return shared ? s.total[d] : all_rows(d); }
  //! @brief Where the rows for far rank `peer` are staged: behind those for the far ranks before it.
  [[nodiscard]] MORI_EP_HD std::uint32_t staged_before(std::int32_t peer) const {
    std::uint32_t rows = 0;
    MORI_EP_ROLLED
    for (std::int32_t d = 0; d < peer; ++d)
      if (args.port.peers.is_far(d)) rows += rows_for(d);
    return rows;
  }

  //! @brief The expert counts when the blocks share the counting, by one warp of each: a tally in this rank's memory,
  //!        and the last block's warp tells the peers. Its arrival acquires what the others tallied before theirs.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void tally_experts(Ctx& ctx, SetState* state) const {
    std::int32_t const experts = args.placement.experts(), local_experts = args.placement.experts_per_rank();
    auto* tally = args.port.peers.template mine<std::uint32_t>(args.set.expert_tally);
    by_lane(ctx, experts + 1, [&](std::int32_t i) {
      std::uint32_t const rows = i == experts ? s.flags[Scratch::kInvalid] : s.experts[i];
      if (rows != 0) ctx.tally(tally + i, rows);
    });
    ctx.warp_sync();
    if (ctx.lane() == 0) s.flags[Scratch::kLast] = ctx.arrive(&state->blocks_tallied) ? 1 : 0;
    ctx.warp_sync();
    if (s.flags[Scratch::kLast] == 0) return;
    std::uint32_t const invalid = ctx.load(tally + experts);
    by_lane(ctx, experts + args.placement.world(), [&](std::int32_t i) {
      bool const expert = i < experts;
      std::int32_t const peer = expert ? quotient(i, local_experts) : i - experts;
      if constexpr (PeerRef::kFar)
        if (args.port.reaches_far(peer)) {
          ctx.store(
              args.far_words(peer, epoch) + args.columns() + 1 + (expert ? i - peer * local_experts : local_experts),
              exec::signal_word(epoch, expert ? ctx.load(tally + i) : invalid));
          return;
        }
      ctx.post(tell_experts(peer) + (expert ? i - peer * local_experts : local_experts), epoch,
               args.port.left_out(peer) ? 0
               : expert                 ? ctx.load(tally + i)
                                        : invalid);
    });
    if constexpr (PeerRef::kFar) {
      ctx.flush_stores();
      ctx.warp_sync();
      MORI_EP_ROLLED
      for (std::int32_t peer = 0; peer < args.placement.world(); ++peer)
        if (args.port.reaches_far(peer)) tell_far(ctx, peer, Args::kExperts);
    }
    ctx.warp_sync();
    by_lane(ctx, experts + 1, [&](std::int32_t i) { ctx.store(tally + i, 0u); });
  }

  //! @brief Acquires all counts: adds the rows of earlier ranks to `before`, and what comes here. `closing`: other
  //!        threads of the block meanwhile hear what else can be here by now, so that one time of waiting serves all:
  //!        the expert counts, when every block counts, and the blocks of a rank without tokens. False when a peer did
  //!        not come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_BODY MORI_EP_HD bool hear(Ctx& ctx, bool closing) const {
    std::int32_t const world = args.placement.world(), me = args.port.peers.rank, each = args.columns() + 1,
                       counts = world * each;
    auto* words = args.counts_of(s.peers, me, 0, epoch);
    MORI_EP_ROLLED
    for (std::int32_t i = thread(ctx); i < counts; i += threads(ctx)) {
      std::int32_t const source = quotient(i, each), d = i - source * each;
      std::uint32_t payload = 0;
      if (!args.hear_far(ctx, source, epoch, Args::kCounts) ||
          !args.port.await(ctx, words + i, epoch, Phase::dispatch_counts, source, &payload)) {
        ctx.shared_add(s.flags + Scratch::kUnheard, 1u);
        break;
      }
      if (d + 1 == each) {
        bool const far = args.port.reaches_far(source);
        s.blocks[source] = far ? kFarPuts : payload;
        if constexpr (PeerRef::kFar && !PeerRef::kRelays) s.there[source] = payload;
        continue;
      }
      if constexpr (PeerRef::kRelays)
        if (d >= world) {
          hear_copies(source, d - world, payload);
          continue;
        }
      if (source < me) ctx.shared_add(s.before + d, payload);
      if (d == me) {
        s.rows[source] = payload;
        ctx.shared_add(s.flags + Scratch::kReceived, payload);
      }
    }
    if (closing && count == 0 && !PeerRef::kRelays) hear_blocks(ctx, threads(ctx) - 1 - thread(ctx));
    if (closing && !shared) {
      std::int32_t const others = thread(ctx) - (counts < threads(ctx) ? counts : 0);
      hear_experts(ctx, others < 0 ? others + threads(ctx) : others, threads(ctx));
    }
    ctx.block_sync();
    if constexpr (PeerRef::kRelays) {
      by_thread(ctx, args.far.nodes.count(), [&](std::int32_t node) {
        s.copies[node] = rows_for(world + node);
        std::uint32_t earlier = 0;
        for (std::int32_t n = 0; n < node; ++n) earlier += rows_for(world + n);
        s.stage[node] = earlier;
      });
      ctx.block_sync();
    } else if constexpr (PeerRef::kFar) {
      by_thread(ctx, world, [&](std::int32_t d) {
        s.stage[d] = staged_before(d);
        s.shift[d] = s.stage[d] - s.before[d];
      });
      ctx.block_sync();
    }
    return s.flags[Scratch::kUnheard] == 0;
  }

  //! @brief Acquires the word of every block of this rank, from the `first`-th on, one per thread.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void hear_blocks(Ctx& ctx, std::int32_t first) const {
    std::int32_t const me = args.port.peers.rank;
    MORI_EP_ROLLED
    for (std::int32_t i = first; i < ctx.blocks(); i += threads(ctx))
      if (!args.port.await(ctx, args.rows_arrived(s.peers, me, me) + i, epoch, Phase::dispatch_rows, me)) {
        ctx.shared_add(s.flags + Scratch::kMissing, 1u);
        break;
      }
  }

  //! @brief The expert counts of all ranks, into `received`; by thread `first` of `step`. Raises kMissing when a peer
  //!        did not come.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void hear_experts(Ctx& ctx, std::int32_t first, std::int32_t step) const {
    std::int32_t const me = args.port.peers.rank, each = args.placement.experts_per_rank() + 1;
    auto* words = args.expert_counts_of(s.peers, me, 0, epoch);
    MORI_EP_ROLLED
    for (std::int32_t i = first; i < args.placement.world() * each; i += step) {
      std::int32_t const source = quotient(i, each), e = i - source * each;
      std::uint32_t rows = 0;
      if (!args.hear_far(ctx, source, epoch, Args::kExperts) ||
          !args.port.await(ctx, words + i, epoch, Phase::dispatch_counts, source, &rows, exec::WaitOrder::none)) {
        ctx.shared_add(s.flags + Scratch::kMissing, 1u);
        break;
      }
      if (e + 1 < each)
        ctx.shared_add(s.received + e, rows);
      else if (source == me)
        s.flags[Scratch::kInvalidTold] = rows;
    }
  }

 private:
  //! What `source` sends to `node`, if this rank relays it.
  MORI_EP_BODY MORI_EP_HD void hear_copies(std::int32_t source, std::int32_t node, std::uint32_t copies) const {
    const Nodes& nodes = args.far.nodes;
    std::int32_t const me = args.port.peers.rank, here = nodes.of(me), from = nodes.of(source);
    if (from != here && node == here && nodes.relay(source, here) == me) s.relayed[source] = copies;
  }

  //! Asks the network to put what far rank `peer` is told, and to say so. By a whole warp.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void tell_far(Ctx& ctx, std::int32_t peer, typename Args::FarWord what) const {
    auto const world = static_cast<std::size_t>(args.placement.world()),
               columns = static_cast<std::size_t>(args.columns()),
               local_experts = static_cast<std::size_t>(args.placement.experts_per_rank()),
               me = static_cast<std::size_t>(args.port.peers.rank), to = static_cast<std::size_t>(peer),
               parity = static_cast<std::size_t>(epoch % 2);
    bool const experts = what == Args::kExperts;
    std::size_t const words = experts ? local_experts + 1 : columns + 1,
                      from = (parity * world + to) * (columns + local_experts + 2) + (experts ? columns + 1 : 0);
    const comm::Region& there = experts ? args.set.expert_counts : args.set.counts;
    args.port.put_far(
        ctx, peer,
        {.from = args.far.words.offset + from * sizeof(std::uint64_t),
         .there = there.offset + (parity * world + me) * words * sizeof(std::uint64_t),
         .bytes = words * sizeof(std::uint64_t)},
        args.far.told.offset +
            static_cast<std::size_t>(args.far_told(args.port.peers.rank, epoch, what)) * sizeof(std::uint64_t),
        epoch, Phase::dispatch_counts);
  }
  [[nodiscard]] MORI_EP_HD std::uint64_t* tell_experts(std::int32_t peer) const {
    return args.port.tell(
        peer, [&](std::int32_t at, std::int32_t from) { return args.expert_counts_of(s.peers, at, from, epoch); });
  }
  [[nodiscard]] static MORI_EP_HD std::int32_t tiles_of(std::int32_t tokens) {
    return (tokens + Scratch::kTile - 1) / Scratch::kTile;
  }
  //! How many tiles the window that begins at token `begin` has.
  [[nodiscard]] MORI_EP_HD std::int32_t window_tiles(std::int32_t begin) const {
    std::int32_t const left = tiles_of(count - begin), most = Scratch::tiles(args.columns());
    return left < most ? left : most;
  }
  [[nodiscard]] MORI_EP_HD std::uint64_t* votes_of(std::int32_t tile) const {
    return args.port.peers.template mine<std::uint64_t>(args.set.votes) +
           static_cast<std::ptrdiff_t>(tile) * args.columns();
  }
  //! This rank's rows for column d, of votes that are all here.
  [[nodiscard]] MORI_EP_HD std::uint32_t all_rows(std::int32_t d) const {
    std::int32_t rows = 0;
    MORI_EP_ROLLED
    for (std::int32_t tile = 0; tile < tiles_of(count); ++tile)
      rows += routing::count_bits(s.votes[tile * args.columns() + d]);
    return static_cast<std::uint32_t>(rows);
  }

  //! One row for each distinct expert among `ids`, which are ids [from, from + kIdsAtOnce) of token t.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void count_experts(Ctx& ctx, std::int32_t t, std::int32_t from,
                                             const Index (&ids)[Args::kIdsAtOnce]) const {
    MORI_EP_UNROLL
    for (std::int32_t k = 0; k < Args::kIdsAtOnce; ++k) {
      bool named = ids[k] == static_cast<Index>(routing::kNoExpert);
      MORI_EP_UNROLL
      for (std::int32_t j = 0; j < k; ++j) named |= ids[j] == ids[k] && args.placement.rank_of(ids[k]) >= 0;
      if (named ||
          (from > 0 && args.placement.rank_of(ids[k]) >= 0 && routing::named_before(args.ids_of(t), from, ids[k])))
        continue;
      ctx.shared_add(args.placement.rank_of(ids[k]) < 0 ? s.flags + Scratch::kInvalid : s.experts + ids[k], 1u);
    }
  }
};

}  // namespace mori_ep::schedule::intra_node
