// SPDX-License-Identifier: MIT
//! @file Dispatch between nodes by relays: one record for each token and node, passed on by load and store there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/schedule/intra_node/dispatch_args.hpp"
#include "mori_ep/schedule/intra_node/relay.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief A source's side: what it stages for other nodes. `parts`: of a row.
template <class PeerRef, routing::IndexType Index>
struct RecordSender {
  using Scratch = DispatchScratch<PeerRef>;

  const DispatchArgs<PeerRef, Index>& args;
  const Scratch& s;
  std::uint32_t epoch;
  std::int32_t parts;

  //! @brief Where this rank's i-th record for `node` is staged.
  [[nodiscard]] MORI_EP_HD std::byte* record(std::int32_t node, std::uint32_t i) const {
    return args.port.peers.template mine<std::byte>(args.far.out) +
           static_cast<std::size_t>(s.stage[node] + i) * args.far.record.bytes;
  }

  //! @brief What goes beside the rows of a tile of tokens for `node`; `begin` is the window's first token. By a whole
  //!        warp.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void tell(Ctx& ctx, std::int32_t begin, std::int32_t tile, std::int32_t node) const {
    std::int32_t const columns = args.columns(), column = args.placement.world() + node,
                       place = tile * columns + column, size = args.far.nodes.size(node),
                       first_rank = args.far.nodes.first(node);
    std::uint32_t const votes = s.votes[place];
    std::int32_t const copies = routing::count_bits(votes), tile_begin = begin + tile * Scratch::kTile;
    if (copies == 0) return;
    std::uint32_t const first = s.before[column] + s.first[place];
    by_lane(ctx, Scratch::kTile, [&](std::int32_t i) {
      if (((votes >> i) & 1u) != 0) s.tokens[votes_below(votes, i)] = tile_begin + i;
    });
    ctx.warp_sync();
    const RecordLayout& at = args.far.record;
    auto const field = [&]<class V>(V*, std::int32_t c, std::size_t offset) {
      return reinterpret_cast<V*>(record(node, first + static_cast<std::uint32_t>(c)) + offset);
    };
    using Word = std::int32_t;
    std::uint32_t const carries = (args.weights != nullptr ? std::uint32_t{RecordLayout::kWeights} : 0u) |
                                  (args.brings_scales() ? std::uint32_t{RecordLayout::kScales} : 0u);
    by_lane(ctx, copies, [&](std::int32_t c) {
      ctx.store(field(static_cast<Word*>(nullptr), c, at.source), args.port.peers.rank * args.max_tokens + s.tokens[c]);
      ctx.store(field(static_cast<std::uint32_t*>(nullptr), c, at.carries), carries);
    });
    by_lane(ctx, copies * size, [&](std::int32_t i) {
      std::int32_t const c = quotient(i, size), r = i - c * size, d = tile * columns + first_rank + r,
                         bit = s.tokens[c] - tile_begin;
      std::uint32_t const there = s.votes[d];
      std::uint32_t const row = s.before[first_rank + r] + s.first[d] + votes_below(there, bit);
      bool const kept = ((there >> bit) & 1u) != 0 && row < static_cast<std::uint32_t>(args.capacity);
      ctx.store(field(static_cast<Word*>(nullptr), c, at.rows) + r, kept ? static_cast<Word>(row) : Word{-1});
    });
    MORI_EP_ROLLED
    for (std::int32_t c = 0; c < copies; ++c) {
      ctx.pack(field(static_cast<Index*>(nullptr), c, at.ids), 1, args.topk,
               [&](std::int32_t) { return args.ids_of(s.tokens[c]); });
      if (args.weights != nullptr)
        ctx.pack(field(static_cast<float*>(nullptr), c, at.weights), 1, args.topk,
                 [&](std::int32_t) { return args.weights_of(s.tokens[c]); });
      if (args.scales != nullptr)
        ctx.pack(field(static_cast<std::byte*>(nullptr), c, at.scales), 1, static_cast<std::int32_t>(args.scale_bytes),
                 [&](std::int32_t) { return args.scales_of(s.tokens[c]); });
    }
    ctx.flush_stores();
    ctx.warp_sync();  // all have done with these tokens
    MORI_EP_ROLLED
    for (auto i = static_cast<std::int32_t>(first), end = i + copies; i < end;) {
      std::int32_t const chunk = quotient(i, args.far.chunk), chunk_end = (chunk + 1) * args.far.chunk,
                         upto = end < chunk_end ? end : chunk_end;
      staged(ctx, node, chunk, upto - i);
      i = upto;
    }
  }

  //! @brief A part of the row of token `bit` of `tile` is staged, for every node that it goes to. By a whole warp, which
  //!        has met since it wrote.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void row_staged(Ctx& ctx, std::int32_t tile, std::int32_t bit) const {
    bool flushed = false;
    MORI_EP_ROLLED
    for (std::int32_t node = 0; node < args.far.nodes.count(); ++node) {
      std::int32_t const column = args.placement.world() + node, place = tile * args.columns() + column;
      std::uint32_t const votes = s.votes[place];
      if (((votes >> bit) & 1u) == 0) continue;
      if (!flushed) {
        ctx.flush_stores();
        ctx.warp_sync();
      }
      flushed = true;
      auto const i = static_cast<std::int32_t>(s.before[column] + s.first[place] + votes_below(votes, bit));
      staged(ctx, node, quotient(i, args.far.chunk), 1);
    }
  }

 private:
  //! A record is all there when each part of its row is, and what goes beside it.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void staged(Ctx& ctx, std::int32_t node, std::int32_t chunk, std::int32_t pieces) const {
    std::int32_t const begin = chunk * args.far.chunk, left = static_cast<std::int32_t>(s.copies[node]) - begin,
                       records = left < args.far.chunk ? left : args.far.chunk;
    auto* counter = args.port.peers.template mine<std::uint32_t>(args.far.staged) + node * args.far.chunks + chunk;
    if (!completes(ctx, counter, pieces, records * (parts + 1))) return;
    std::int32_t const me = args.port.peers.rank, slot = args.far.nodes.slot(me, node);
    auto const each = args.far.record.bytes;
    std::size_t const there =
        static_cast<std::size_t>(slot) * static_cast<std::size_t>(args.max_tokens) + static_cast<std::size_t>(begin);
    args.port.put_far(
        ctx, args.far.nodes.relay(me, node),
        {.from = args.far.out.offset + (s.stage[node] + static_cast<std::size_t>(begin)) * each,
         .there = args.far.in.offset + there * each,
         .bytes = static_cast<std::size_t>(records) * each},
        args.far.arrived.offset + static_cast<std::size_t>(slot * args.far.chunks + chunk) * sizeof(std::uint64_t),
        epoch, Phase::dispatch_rows);
  }
};

//! @brief A relay's side: passes records on to the ranks of its node. Weighted: keeps each copy's weight for combine.
template <class PeerRef, routing::IndexType Index, bool Weighted>
struct RecordForwarder {
  using Scratch = DispatchScratch<PeerRef>;

  const DispatchArgs<PeerRef, Index>& args;
  const Scratch& s;
  std::uint32_t epoch;

  //! @brief This warp's share. Raises kMissing when a source did not come.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void forward(Ctx& ctx) const {
    RelayWalk<PeerRef> const walk{args.port, args.far, args.max_tokens, args.relay_blocks};
    using Chunk = typename RelayWalk<PeerRef>::Chunk;
    auto* arrived = args.port.peers.template mine<std::uint64_t>(args.far.arrived);
    bool const all = walk.walk(
        ctx, [&](std::int32_t, std::int32_t source) { return static_cast<std::int32_t>(s.relayed[source]); },
        [&](const Chunk& chunk) {
          return await_by_warp(ctx, args.port, arrived + chunk.slot * args.far.chunks + chunk.number, epoch,
                               Phase::dispatch_rows, chunk.source);
        },
        [&](const Chunk& chunk, std::int32_t i) {
          pass_on(ctx, walk.record(chunk.slot, i), walk.factors(chunk.slot, i));
        });
    if (!all && ctx.lane() == 0) ctx.shared_add(s.flags + Scratch::kMissing, 1u);
  }

 private:
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void pass_on(Ctx& ctx, const std::byte* record, float* factors) const {
    const RecordLayout& at = args.far.record;
    auto const* rows = reinterpret_cast<const std::int32_t*>(record + at.rows);
    auto const* ids = reinterpret_cast<const Index*>(record + at.ids);
    auto const* weights = reinterpret_cast<const float*>(record + at.weights);
    std::int32_t const first = args.port.peers.near.begin, ranks = args.port.peers.near.end - first;
    ctx.multicast_row(
        record, s.targets,
        [&] {
          return each_kept(ctx, rows, ranks, [&](std::int32_t copy, std::int32_t r, std::int32_t row) {
            s.targets[copy] = s.peers.template at<std::byte>(first + r, args.set.recv_x) +
                              static_cast<std::size_t>(row) * args.row_bytes;
          });
        },
        args.row_bytes, 0, 1);
    std::uint32_t const carries = ctx.load(reinterpret_cast<const std::uint32_t*>(record + at.carries));
    std::int32_t const source = ctx.load(reinterpret_cast<const std::int32_t*>(record + at.source));
    auto const k = static_cast<std::size_t>(args.topk);
    MORI_EP_ROLLED
    for (std::int32_t r = 0; r < ranks; ++r) {
      std::int32_t const kept = ctx.load(rows + r);
      if (kept < 0) continue;
      auto const row = static_cast<std::size_t>(kept);
      if (ctx.lane() == 0) ctx.store(s.peers.template at<std::int32_t>(first + r, args.set.recv_src_pos) + row, source);
      ctx.pack(s.peers.template at<Index>(first + r, args.set.recv_ids) + row * k, 1, args.topk,
               [&](std::int32_t) { return ids; });
      if ((carries & RecordLayout::kWeights) != 0)
        ctx.pack(s.peers.template at<float>(first + r, args.set.recv_weights) + row * k, 1, args.topk,
                 [&](std::int32_t) { return weights; });
      if ((carries & RecordLayout::kScales) != 0)
        ctx.pack(s.peers.template at<std::byte>(first + r, args.set.recv_scales) + row * args.scale_bytes, 1,
                 static_cast<std::int32_t>(args.scale_bytes), [&](std::int32_t) { return record + at.scales; });
    }
    if constexpr (Weighted)
      by_lane(ctx, ranks, [&](std::int32_t r) {
        float sum = 0;
        MORI_EP_ROLLED
        for (std::int32_t i = 0; (carries & RecordLayout::kWeights) != 0 && i < args.topk; ++i)
          if (args.placement.rank_of(ctx.load(ids + i)) == first + r) sum += ctx.load(weights + i);
        ctx.store(factors + r, sum);
      });
    ctx.warp_sync();  // all have done with these targets
  }
};

}  // namespace mori_ep::schedule::intra_node
