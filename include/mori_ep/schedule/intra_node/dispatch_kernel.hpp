// SPDX-License-Identifier: MIT
//! @file Dispatch inside a node: counts, slots, rows, one launch.
//!
//! Every rank tells every other how many rows it will send to each rank; from the W x W counts each source knows its
//! first row on each destination, so slots are prefix sums: no remote atomics, no signal to reset, and rows lie in
//! (source rank, source token) order whatever the timing and the block count. Few tokens: every block counts all of
//! them, so that none waits for another. Many: every block counts some, and the blocks of a rank tell each other which
//! token goes where. Every block tells the peers by itself when its rows are there.
//!
//! Why one buffer set is enough. Let n be the epoch of this set's dispatch on ranks s (source) and d (destination).
//!  1. s writes d's rows of n only after it has acquired d's counts of n. d publishes those in dispatch n, which its
//!     stream runs after everything that read the rows of n - 1: so no reader is overtaken.
//!  2. d reads rows of n only after it has acquired rows_arrived of n from every block that sent some; a block releases
//!     its word after all its warps have flushed their stores: so rows and metadata are whole.
//!  3. s overwrites its counts of n, of rows and of experts, in dispatch n + 2, since odd and even epochs have words of
//!     their own. It enters that after it has heard d's counts of n + 1, which d publishes after its dispatch n has
//!     ended, which hears all of n: so none is lost. The votes and the tally that the blocks of one rank share are
//!     overwritten by that rank's next launch, or by the last block to arrive, after which none touches them.
//!  4. d overwrites its combine rows only after its dispatch n has completed, that is after its last block has acquired
//!     every rank's counts of n, which s publishes in a stream that has finished combine n - 1: so no puller is
//!     overtaken (combine_kernel.hpp).
//!  5. The last block advances this rank's epoch, and takes back the parts drawn, after it has acquired rows_arrived of
//!     n from all blocks of its own rank, which without tokens release it as soon as they have announced what they
//!     must, or, where they relay, have passed on what came: so every block has read the one and drawn its last from
//!     the other before.
//!  6. A rank that is left out sends no rows and is sent none. Its words in d's arena are d's own: a launch writes those
//!     of its epoch before it waits for them, and the launches of a set run one after the other.
//!  7. Far ranks, which only a network reaches (PeerRef::kFar). What a near rank would store at d, s stages in its own
//!     arena and asks the network to put there, each run of bytes with a signal of its own that d acquires: so nothing
//!     depends on the order in which runs arrive. Rows: all blocks flush and arrive, and the last asks. Counts: the block
//!     that tells d flushes and meets before it asks; d reads a far rank's words only after it has acquired far.told of
//!     n, so they need not be whole by themselves. s writes what it has staged again in dispatch n + 1 (counts: n + 2)
//!     after it has heard d's counts of n + 1, which d publishes after its dispatch n has ended, which has acquired all
//!     of them: so the network has read them. With relays, which pass rows on inside their node: relay.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/schedule/intra_node/dispatch_counts.hpp"
#include "mori_ep/schedule/intra_node/dispatch_rows.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One rank's dispatch. Weighted: the ticket keeps each copy's weight. Form: a CodedRow that rows become on the
//!        way, or void: they travel as they are.
template <class PeerRef, routing::IndexType Index, bool Weighted, class Form = void>
struct DispatchKernel {
  DispatchArgs<PeerRef, Index> args;

  //! @brief Scratch per block.
  [[nodiscard]] static constexpr std::size_t shared_bytes(int world, int columns, int experts, int topk,
                                                          int warps) noexcept {
    return Scratch::bytes(world, columns, experts, topk, warps);
  }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    auto* state = args.port.peers.template mine<SetState>(args.set.state);
    bool const sends = has(args.halves, Half::send);
    // Whoever counts all tokens needs room for the votes of all.
    bool const shared = args.tokens > Ctx::kTokensCountedAlone || args.tokens > Scratch::kFewestTiles * Scratch::kTile;
    // What the first steps read is asked for before any of it is needed.
    std::uint32_t const epoch = ctx.load(&state->epoch) + (sends ? 1u : 0u);
    std::int32_t const given = args.token_count == nullptr ? args.tokens : ctx.load(args.token_count);
    bool const failed = args.port.failed(ctx);
    Index ids[Args::kIdsAtOnce];
    bool const early = sends && !shared && Counts::first_token(ctx) < args.tokens;
    if (early) args.read_ids(ctx, Counts::first_token(ctx), 0, ids);
    Scratch const s = Scratch::carve(ctx, args.port.peers, args.columns(), args.placement.experts(),
                                     std::is_void_v<Form> ? args.topk : 2 * args.topk);
    clear(ctx, s);
    if (thread(ctx) == 0 && failed) s.flags[Scratch::kStopped] = 1;

    std::int32_t const count = given < 0 || given > args.tokens ? 0 : given;
    Counts const counts{args, s, epoch, count, shared};
    bool const sending = sends && count > 0, closing = ctx.block() == ctx.blocks() - 1;
    ctx.block_sync();
    if (sending) counts.vote(ctx, early, ids);
    ctx.block_sync();

    bool ok = s.flags[Scratch::kStopped] == 0;
    if (sends && ok) {
      if (count != given && ctx.block() == 0 && thread(ctx) == 0)
        args.port.raise(ctx, Errc::invalid_argument, Phase::dispatch_counts, args.port.peers.rank, epoch, epoch, given,
                        args.tokens, Operand::token_count);
      ok = send(ctx, s, counts, state, closing);
    }
    if (closing) finish(ctx, s, state, epoch, sending, ok);
    // Nothing of this block may touch a peer's memory, or its own, after it has counted itself out.
    ctx.block_sync();
    if (thread(ctx) == 0) ctx.launch_ends(&state->blocks_ended);
  }

 private:
  using Args = DispatchArgs<PeerRef, Index>;
  using Scratch = DispatchScratch<PeerRef>;
  using Counts = CountExchange<PeerRef, Index>;
  using Rows = RowSender<PeerRef, Index, Weighted, Form>;

  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void clear(Ctx& ctx, const Scratch& s) const {
    std::int32_t const world = args.placement.world();
    by_thread(ctx, Scratch::sums(args.columns(), args.placement.experts()), [&](std::int32_t i) { s.flags[i] = 0; });
    by_thread(ctx, world, [&](std::int32_t i) {
      s.table[i] = ctx.load(args.port.peers.bases + i);
      if constexpr (PeerRef::kRelays) s.relayed[i] = 0;
    });
  }

  //! This block's part in the exchange of counts, and in sending. The first blocks tell the peers; the last one, which
  //! closes the dispatch, accounts for what will come.
  template <class Ctx>
  [[nodiscard]] MORI_EP_BODY MORI_EP_HD bool send(Ctx& ctx, const Scratch& s, const Counts& counts, SetState* state,
                                                  bool closing) const {
    std::int32_t const count = counts.count;
    bool const sending = count > 0, last_warp = ctx.warp() == ctx.warps() - 1;
    if (counts.shared && sending && !counts.hear_votes(ctx)) return false;
    if (counts.announces(ctx) && !counts.announce(ctx)) return false;
    if (!sending && !PeerRef::kRelays) enter(ctx, s, counts.epoch);
    // While the counts travel.
    std::int32_t const window = Scratch::tiles(args.columns()) * Scratch::kTile;
    Rows rows{.args = args,
              .s = s,
              .drawn = &state->parts_drawn,
              .epoch = counts.epoch,
              .blocks = ctx.blocks() - (PeerRef::kRelays ? args.relay_blocks : 0),
              .count = count,
              .end = count < window ? count : window};
    bool const moves = sending && ctx.block() < rows.blocks;
    if (moves) {
      rows.share_out(ctx);
      rows.prefetch(ctx);
      counts.number(ctx, 0);
    }
    if ((sending || closing || PeerRef::kRelays) && !counts.hear(ctx, closing)) return false;
    if (closing && !counts.shared) account(ctx, s, state, counts, thread(ctx), threads(ctx));
    if (counts.shared && last_warp) counts.tally_experts(ctx, state);
    MORI_EP_ROLLED
    while (moves) {
      rows.send(ctx);
      if (rows.end == count) break;
      rows.begin = rows.end;
      rows.end = count - rows.begin < window ? count : rows.begin + window;
      counts.turn_window(ctx, rows.begin);
    }
    if (closing && counts.shared && last_warp) {
      counts.hear_experts(ctx, ctx.lane(), Ctx::lanes);
      ctx.warp_sync();
      account(ctx, s, state, counts, ctx.lane(), Ctx::lanes);
    }
    if constexpr (PeerRef::kRelays) {
      RecordForwarder<PeerRef, Index, Weighted>{args, s, counts.epoch}.forward(ctx);
      ctx.block_sync();
      if (s.flags[Scratch::kMissing] != 0) return false;
    }
    if (sending || PeerRef::kRelays) publish_rows(ctx, s, counts, state);
    return true;
  }

  //! A block of a rank without tokens has read the epoch, and has no more to say.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void enter(Ctx& ctx, const Scratch& s, std::uint32_t epoch) const {
    std::int32_t const me = args.port.peers.rank;
    if (thread(ctx) == 0) ctx.signal(args.rows_arrived(s.peers, me, me) + ctx.block(), epoch, 0);
  }

  //! Every warp flushes before the block meets: then any of its threads may publish for all.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void publish_rows(Ctx& ctx, const Scratch& s, const Counts& counts, SetState* state) const {
    ctx.flush_stores();
    ctx.block_sync();
    by_thread(ctx, args.placement.world(), [&](std::int32_t peer) {
      if (!args.port.left_out(peer) && !args.port.peers.is_far(peer))
        ctx.signal(args.rows_arrived(s.peers, peer, args.port.peers.rank) + ctx.block(), counts.epoch, 0);
    });
    if constexpr (PeerRef::kFar && !PeerRef::kRelays) {
      // An arrival releases what the block staged and acquires what earlier blocks staged: the last sends all.
      if (thread(ctx) == 0) s.flags[Scratch::kLastStaged] = ctx.arrive(&state->blocks_staged) ? 1 : 0;
      ctx.block_sync();
      if (s.flags[Scratch::kLastStaged] == 0 || ctx.warp() != 0) return;
      MORI_EP_ROLLED
      for (std::int32_t d = 0; d < args.placement.world(); ++d)
        if (args.port.reaches_far(d)) put_rows(ctx, s, d, counts.rows_for(d), counts.epoch);
    }
  }
  //! The rows staged for far rank d, and what goes beside them, each with a signal of its own: so nothing depends on
  //! the order in which a network carries them. By a whole warp.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void put_rows(Ctx& ctx, const Scratch& s, std::int32_t d, std::uint32_t rows,
                                        std::uint32_t epoch) const {
    if (rows == 0) return;
    auto const first = std::int64_t{s.stage[d] - s.shift[d]}, room = args.capacity - first;
    auto const kept = static_cast<std::size_t>(room < 0      ? 0
                                               : room < rows ? room
                                                             : std::int64_t{rows}),
               k = static_cast<std::size_t>(args.topk);
    std::size_t word = static_cast<std::size_t>(args.port.peers.rank) * kMaxBlocks;
    auto const put = [&](const comm::Region& from, const comm::Region& to, std::size_t width) {
      args.port.put_far(ctx, d,
                        {.from = from.offset + s.stage[d] * width,
                         .there = to.offset + static_cast<std::size_t>(first) * width,
                         .bytes = kept * width},
                        args.set.rows_arrived.offset + word++ * sizeof(std::uint64_t), epoch, Phase::dispatch_rows);
    };
    put(args.far.x, args.set.recv_x, args.row_bytes);
    put(args.far.ids, args.set.recv_ids, k * sizeof(Index));
    put(args.far.weights, args.set.recv_weights, args.weights == nullptr ? 0 : k * sizeof(float));
    put(args.far.scales, args.set.recv_scales, args.brings_scales() ? args.scale_bytes : 0);
    put(args.far.src_pos, args.set.recv_src_pos, sizeof(std::int32_t));
  }

  //! The last block waits for the rows of every block that sent some, and for the blocks of its own rank (only those,
  //! when only sending); then the dispatch is done and the epoch advances.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void finish(Ctx& ctx, const Scratch& s, SetState* state, std::uint32_t epoch, bool sending,
                                      bool ok) const {
    bool const sends = has(args.halves, Half::send), receives = has(args.halves, Half::recv);
    if (ok) {
      if (!sends) recall_senders(ctx, s);
      await_rows(ctx, s, epoch, sending, receives);
      ctx.block_sync();
      ok = s.flags[Scratch::kMissing] == 0;
      if (ok && sends && thread(ctx) == 0) {
        ctx.store(&state->parts_drawn, 0);
        ctx.store(&state->epoch, epoch);
      }
    }
    if (ok && receives && dropped(ctx, s, state)) {
      ctx.block_sync();
      if (ctx.warp() == 0) recount_experts(ctx, state);
    }
    if (!ok && ctx.warp() == 0) forget_rows(ctx, state);
  }

  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void recall_senders(Ctx& ctx, const Scratch& s) const {
    auto* kept = args.port.peers.template mine<std::uint32_t>(args.set.senders);
    by_thread(ctx, args.placement.world(),
              [&](std::int32_t source) { s.rows[source] = s.blocks[source] = ctx.load(kept + source); });
    ctx.block_sync();
  }

  //! Will the blocks of `source` say that its rows are here? Where it relays, also when none of them is its own.
  [[nodiscard]] static MORI_EP_HD bool speaks(const Scratch& s, std::int32_t source) {
    return PeerRef::kRelays || s.rows[source] != 0;
  }

  //! Thread i takes the i-th word of all sources' words laid end to end.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void await_rows(Ctx& ctx, const Scratch& s, std::uint32_t epoch, bool sending,
                                          bool of_all) const {
    std::int32_t const me = args.port.peers.rank;
    std::int32_t first = of_all ? 0 : me, end = of_all ? args.placement.world() : me + 1;
    if constexpr (PeerRef::kRelays)
      if (of_all) first = args.port.peers.near.begin, end = args.port.peers.near.end;  // they pass on the others' rows
    auto at = static_cast<std::uint32_t>(thread(ctx));
    MORI_EP_ROLLED
    for (std::int32_t source = first; source < end;) {
      bool const own = (sending || (PeerRef::kRelays && has(args.halves, Half::send))) && source == me;
      std::uint32_t const words = own                 ? static_cast<std::uint32_t>(ctx.blocks())
                                  : speaks(s, source) ? s.blocks[source]
                                                      : 0;
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

  //! What this rank receives, in all and by expert, and from how many blocks: known before the rows are there. By
  //! thread `first` of `step`.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void account(Ctx& ctx, const Scratch& s, SetState* state, const Counts& counts,
                                       std::int32_t first, std::int32_t step) const {
    std::int64_t const total = s.flags[Scratch::kReceived], kept = total < args.capacity ? total : args.capacity;
    if (first == 0) {
      ctx.store(&state->totals, routing::RecvTotals{static_cast<std::int32_t>(kept), 0, total, total - kept,
                                                    static_cast<std::int64_t>(s.flags[Scratch::kInvalidTold])});
      ctx.store(&state->tokens, counts.count);
    }
    auto* senders = args.port.peers.template mine<std::uint32_t>(args.set.senders);
    for (std::int32_t source = first; source < args.placement.world() && !has(args.halves, Half::recv); source += step)
      ctx.store(senders + source, speaks(s, source) ? s.blocks[source] : 0u);
    auto* expert_count = args.port.peers.template mine<std::int32_t>(args.set.expert_count);
    for (std::int32_t e = first; e < args.placement.experts_per_rank(); e += step)
      ctx.store(expert_count + e, static_cast<std::int32_t>(s.received[e]));
    if constexpr (PeerRef::kRelays) {
      const Nodes& nodes = args.far.nodes;
      auto* relayed = args.port.peers.template mine<std::int32_t>(args.far.relayed);
      for (std::int32_t slot = first; slot < nodes.slots(); slot += step)
        if (std::int32_t const source = nodes.source(slot, args.port.peers.rank); source >= 0)
          ctx.store(relayed + slot, static_cast<std::int32_t>(s.relayed[source]));
      auto* sent = args.port.peers.template mine<std::int32_t>(args.far.sent) +
                   static_cast<std::int32_t>(counts.epoch % 2) * nodes.count();
      for (std::int32_t node = first; node < nodes.count(); node += step)
        ctx.store(sent + node, static_cast<std::int32_t>(s.copies[node]));
    } else if constexpr (PeerRef::kFar) {
      auto* places = args.port.peers.template mine<FarPlace>(args.far.places);
      for (std::int32_t source = first; source < args.placement.world(); source += step) {
        std::int64_t begins = 0;
        for (std::int32_t earlier = 0; earlier < source; ++earlier) begins += s.rows[earlier];
        std::int64_t const room = args.capacity - begins, rows = s.rows[source];
        ctx.store(places + source, FarPlace{s.shift[source], static_cast<std::int32_t>(begins),
                                            static_cast<std::int32_t>(room < 0      ? 0
                                                                      : room < rows ? room
                                                                                    : rows),
                                            s.there[source]});
      }
    }
  }

  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD bool dropped(Ctx& ctx, const Scratch& s, SetState* state) const {
    if (has(args.halves, Half::send)) return s.flags[Scratch::kReceived] > static_cast<std::uint32_t>(args.capacity);
    return ctx.load(&state->totals.dropped) != 0;
  }

  //! Rows were dropped, so the sources' expert counts are too high: counts the rows that are here.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void recount_experts(Ctx& ctx, SetState* state) const {
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
  MORI_EP_BODY MORI_EP_HD void forget_rows(Ctx& ctx, SetState* state) const {
    auto* expert_count = args.port.peers.template mine<std::int32_t>(args.set.expert_count);
    if (ctx.lane() == 0) ctx.store(&state->totals.recv_count, 0);
    by_lane(ctx, args.placement.experts_per_rank(), [&](std::int32_t e) { ctx.store(expert_count + e, 0); });
  }
};

}  // namespace mori_ep::schedule::intra_node
