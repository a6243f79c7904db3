// SPDX-License-Identifier: MIT
//! @file From votes to rows: where each copy of a token goes, its payload, and what travels beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/schedule/intra_node/dispatch_args.hpp"
#include "mori_ep/schedule/intra_node/relay_dispatch.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One block's part in sending the tokens of a window, once it is known where their rows begin. Weighted: the
//!        ticket keeps each copy's weight. Form: a CodedRow that rows become on the way, or void.
//!
//! The warps of all blocks take parts of rows as they come free: memory serves some multiprocessors faster than others,
//! and what is written at one time lies together. Each warp's first part is its by number; later ones are drawn from a
//! counter, one ahead of need, so that drawing costs no time. The blocks that tell peers, and the last, draw all.
template <class PeerRef, routing::IndexType Index, bool Weighted, class Form>
struct RowSender {
  using Scratch = DispatchScratch<PeerRef>;

  const DispatchArgs<PeerRef, Index>& args;
  const Scratch& s;
  std::uint32_t* drawn;  // how many parts of this dispatch have been drawn
  std::uint32_t epoch;
  std::int32_t blocks;          // that send
  std::int32_t count;           // tokens of this rank
  std::int32_t begin = 0, end;  // the window's
  std::int32_t parts = 1;       // of a row
  std::int32_t movers = 1;      // warps of a block that move rows
  std::int32_t unit = 0;        // this warp's next part of a row: token * parts + part
  bool scarce = false;          // is there no more than one part for each warp?

  //! @brief Who moves what: more parts and more warps when there are few rows. Then this warp's first part.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void share_out(Ctx& ctx) {
    std::int32_t const most = Ctx::most_row_parts(work_bytes());
    parts = Ctx::row_parts(work_bytes());
    while (2 * parts <= most && 2 * count * parts <= ctx.warps() * by_number()) parts *= 2;
    scarce = count * parts <= ctx.warps() * by_number();
    movers = scarce ? ctx.warps() : Ctx::moving_warps(ctx.warps());
    unit = count * parts;
    if (ctx.warp() >= movers) return;
    std::int32_t const numbered = ctx.block() - first_numbered();
    if (numbered >= 0 && numbered < by_number())
      unit = ctx.warp() * by_number() + numbered;
    else if (!scarce)
      unit = unit_of(ctx, ctx.draw(drawn));
  }

  //! @brief Brings this warp's part nearer, if it is one of this window.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void prefetch(Ctx& ctx) const {
    std::int32_t const t = quotient(unit, parts);
    if (t < end) ctx.prefetch_row(args.row_of(t), source_bytes(), unit - t * parts, parts);
  }

  //! @brief This warp's share of the window's rows, and of what travels beside them.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void send(Ctx& ctx) {
    std::int32_t const tellers = Ctx::telling_warps(ctx.warps()), first = ctx.warp() - (ctx.warps() - tellers);
    if (first >= 0) send_beside(ctx, ctx.block() + blocks * first, blocks * tellers);
    MORI_EP_ROLLED
    for (std::int32_t t = quotient(unit, parts); t < end; t = quotient(unit, parts)) {
      std::int32_t const part = unit - t * parts;
      std::uint32_t const drawn_now = scarce ? 0 : ctx.draw(drawn);
      auto const where = [&] { return place(ctx, t, part == 0); };
      if constexpr (kCoded)
        ctx.template encode_row<Form>(args.row_of(t), s.targets, s.targets + args.topk, where, elements(), part, parts);
      else
        ctx.multicast_row(args.row_of(t), s.targets, where, args.row_bytes, part, parts);
      ctx.warp_sync();  // all have done with these targets
      if constexpr (PeerRef::kRelays)
        records().row_staged(ctx, quotient(t - begin, Scratch::kTile), (t - begin) % Scratch::kTile);
      if (scarce) {
        unit = count * parts;  // no more of any window
        break;
      }
      unit = unit_of(ctx, drawn_now);
    }
  }

 private:
  static constexpr bool kCoded = !std::is_void_v<Form>;
  //! Of a row that is coded.
  [[nodiscard]] MORI_EP_HD std::size_t elements() const {
    if constexpr (kCoded)
      return args.row_bytes * static_cast<std::size_t>(Form::Traits::kElements);
    else
      return 0;
  }
  //! What says how many warps a row is work for: a lane codes 16 elements at a time, or moves 16 bytes.
  [[nodiscard]] MORI_EP_HD std::size_t work_bytes() const { return kCoded ? elements() : args.row_bytes; }
  [[nodiscard]] MORI_EP_HD std::size_t source_bytes() const {
    if constexpr (kCoded)
      return elements() * sizeof(RowElement<Form>);
    else
      return args.row_bytes;
  }
  //! The blocks that have first parts by number: those that neither tell peers nor close, if there are any.
  [[nodiscard]] MORI_EP_HD std::int32_t first_numbered() const {
    return blocks - 1 > args.placement.world() ? args.placement.world() : 0;
  }
  [[nodiscard]] MORI_EP_HD std::int32_t by_number() const { return blocks - 1 - first_numbered(); }
  //! The parts that are a warp's by number come before those that are drawn.
  template <class Ctx>
  [[nodiscard]] MORI_EP_BODY MORI_EP_HD std::int32_t unit_of(Ctx& ctx, std::uint32_t drawn_now) const {
    return static_cast<std::int32_t>(ctx.broadcast(drawn_now)) + movers * by_number();
  }

  //! Where the copies of token t go, a rank per lane, in ascending order: fills `targets`, and the ticket's list when
  //! `keeps`. How many there are, without those that find no room.
  template <class Ctx>
  [[nodiscard]] MORI_EP_BODY MORI_EP_HD std::int32_t place(Ctx& ctx, std::int32_t t, bool keeps) const {
    std::int32_t const tile = quotient(t - begin, Scratch::kTile) * args.columns(), bit = (t - begin) % Scratch::kTile;
    std::size_t const list = static_cast<std::size_t>(t) * static_cast<std::size_t>(args.routes_per_token);
    auto* routes = args.port.peers.template mine<routing::RouteEntry>(args.set.routes) + list;
    auto* factors = args.port.peers.template mine<float>(args.set.route_weights) + list;
    std::int32_t copies = 0, listed = 0;
    MORI_EP_ROLLED
    for (std::int32_t from = 0; from < destinations(); from += Ctx::lanes) {
      bool const one = from + ctx.lane() < destinations();
      std::int32_t const d = one ? destination(from + ctx.lane()) : 0;
      std::uint32_t const votes = s.votes[tile + d];
      std::uint32_t const row = s.before[d] + s.first[tile + d] + votes_below(votes, bit);
      bool const goes = one && ((votes >> bit) & 1u) != 0 && (is_node(d) || has_room(row));
      std::uint64_t const going = ctx.ballot(goes);
      std::int32_t const at = copies + routing::count_bits(going & routing::low_bits(ctx.lane()));
      copies += routing::count_bits(going);
      if constexpr (PeerRef::kRelays) {
        // A node has no room for it when none of its ranks has; then nothing comes back from there.
        bool const lists = goes && (!is_node(d) || node_has_room(tile, bit, d - args.placement.world()));
        std::uint64_t const listing = ctx.ballot(lists);
        std::int32_t const entry = listed + routing::count_bits(listing & routing::low_bits(ctx.lane()));
        listed += routing::count_bits(listing);
        if (!goes) continue;
        std::int32_t const node = d - args.placement.world();
        s.targets[at] =
            is_node(d) ? records().record(node, row) : to_be_at<std::byte>(d, args.set.recv_x, {}, row, args.row_bytes);
        if constexpr (kCoded)
          s.targets[args.topk + at] = is_node(d)
                                          ? s.targets[at] + args.far.record.scales
                                          : to_be_at<std::byte>(d, args.set.recv_scales, {}, row, args.scale_bytes);
        if (!keeps || !lists) continue;
        std::int32_t const earlier = is_node(d) ? Nodes::other(node, args.far.nodes.of(args.port.peers.rank)) : 0;
        ctx.store(routes + entry, routing::RouteEntry{d, earlier * args.max_tokens + static_cast<std::int32_t>(row)});
        if constexpr (Weighted) ctx.store(factors + entry, is_node(d) ? 1.0f : weight_of(ctx, t, d));
      } else {
        listed = copies;
        if (!goes) continue;
        s.targets[at] = to_be_at<std::byte>(d, args.set.recv_x, &FarLayout::x, row, args.row_bytes);
        if constexpr (kCoded)
          s.targets[args.topk + at] =
              to_be_at<std::byte>(d, args.set.recv_scales, &FarLayout::scales, row, args.scale_bytes);
        if (keeps) ctx.store(routes + at, routing::RouteEntry{d, static_cast<std::int32_t>(row)});
        if constexpr (Weighted)
          if (keeps) ctx.store(factors + at, weight_of(ctx, t, d));
      }
    }
    for (std::int32_t at = listed + ctx.lane(); keeps && at < args.routes_per_token; at += Ctx::lanes)
      ctx.store(routes + at, routing::RouteEntry{});
    ctx.warp_sync();
    return copies;
  }
  //! What a token's copies go to, in the order in which they are summed: the ranks or, with relays, this node's ranks
  //! between the other nodes.
  [[nodiscard]] MORI_EP_HD std::int32_t destinations() const {
    if constexpr (PeerRef::kRelays)
      return args.far.nodes.count() - 1 + near_ranks();
    else
      return args.placement.world();
  }
  //! The column of the i-th of them.
  [[nodiscard]] MORI_EP_HD std::int32_t destination(std::int32_t i) const {
    if constexpr (PeerRef::kRelays) {
      std::int32_t const here = args.far.nodes.of(args.port.peers.rank), rank = i - here;
      if (rank >= 0 && rank < near_ranks()) return args.port.peers.near.begin + rank;
      return args.placement.world() + (i < here ? i : i - near_ranks() + 1);
    } else {
      return i;
    }
  }
  [[nodiscard]] MORI_EP_HD std::int32_t near_ranks() const {
    return args.port.peers.near.end - args.port.peers.near.begin;
  }
  [[nodiscard]] MORI_EP_HD bool is_node(std::int32_t column) const {
    return PeerRef::kRelays && column >= args.placement.world();
  }
  [[nodiscard]] MORI_EP_HD bool has_room(std::uint32_t row) const {
    return row < static_cast<std::uint32_t>(args.capacity);
  }
  [[nodiscard]] MORI_EP_HD bool node_has_room(std::int32_t tile, std::int32_t bit, std::int32_t node) const {
    std::int32_t const first = args.far.nodes.first(node), behind = first + args.far.nodes.size(node);
    MORI_EP_ROLLED
    for (std::int32_t d = first; d < behind; ++d) {
      std::uint32_t const votes = s.votes[tile + d];
      if (((votes >> bit) & 1u) != 0 && has_room(s.before[d] + s.first[tile + d] + votes_below(votes, bit)))
        return true;
    }
    return false;
  }
  [[nodiscard]] MORI_EP_HD RecordSender<PeerRef, Index> records() const { return {args, s, epoch, parts}; }
  //! What shall be row `row` of rank d's `near`, of `width` elements: there, or, for a far rank, where it is staged.
  template <class V>
  [[nodiscard]] MORI_EP_HD V* to_be_at(std::int32_t d, const comm::Region& near, comm::Region FarLayout::*far,
                                       std::uint32_t row, std::size_t width) const {
    if constexpr (PeerRef::kFar && !PeerRef::kRelays)
      if (args.port.peers.is_far(d))
        return args.port.peers.template mine<V>(args.far.*far) + static_cast<std::size_t>(row + s.shift[d]) * width;
    return s.peers.template at<V>(d, near) + static_cast<std::size_t>(row) * width;
  }
  //! The token's weights over its experts on `rank`.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD float weight_of(Ctx& ctx, std::int32_t t, std::int32_t rank) const {
    float sum = 0;
    MORI_EP_ROLLED
    for (std::int32_t i = 0; args.weights != nullptr && i < args.topk; ++i)
      if (args.placement.rank_of(ctx.load(args.ids_of(t) + i)) == rank) sum += ctx.load(args.weights_of(t) + i);
    return sum;
  }

  //! What travels beside the rows, by warp `first` of `step`: a tile of tokens and a rank at a time, whose rows lie
  //! side by side there, and the ticket's copy of a tile.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void send_beside(Ctx& ctx, std::int32_t first, std::int32_t step) const {
    std::int32_t const each = destinations() + 1, tiles = (end - begin + Scratch::kTile - 1) / Scratch::kTile;
    MORI_EP_ROLLED
    for (std::int32_t i = first; i < tiles * each; i += step) {
      std::int32_t const tile = quotient(i, each), d = i - tile * each;
      if (d + 1 == each) {
        keep_routing(ctx, begin + tile * Scratch::kTile);
        continue;
      }
      if constexpr (PeerRef::kRelays)
        if (is_node(destination(d))) {
          records().tell(ctx, begin, tile, destination(d) - args.placement.world());
          continue;
        }
      tell(ctx, tile, destination(d));
    }
  }

  //! What rank d gets beside the rows of a tile: source positions, ids, weights, scales.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void tell(Ctx& ctx, std::int32_t tile, std::int32_t d) const {
    std::int32_t const place = tile * args.columns() + d;
    std::uint32_t const votes = s.votes[place];
    std::int64_t const row = std::int64_t{s.before[d]} + s.first[place], room = args.capacity - row;
    std::int32_t copies = routing::count_bits(votes);
    if (room < copies) copies = room < 0 ? 0 : static_cast<std::int32_t>(room);
    if (copies == 0) return;
    by_lane(ctx, Scratch::kTile, [&](std::int32_t i) {
      if (((votes >> i) & 1u) != 0) s.tokens[votes_below(votes, i)] = begin + tile * Scratch::kTile + i;
    });
    ctx.warp_sync();
    auto const at = static_cast<std::uint32_t>(row);
    auto const k = static_cast<std::size_t>(args.topk);
    auto* positions = to_be_at<std::int32_t>(d, args.set.recv_src_pos, &FarLayout::src_pos, at, 1);
    by_lane(ctx, copies,
            [&](std::int32_t c) { ctx.store(positions + c, args.port.peers.rank * args.max_tokens + s.tokens[c]); });
    ctx.pack(to_be_at<Index>(d, args.set.recv_ids, &FarLayout::ids, at, k), copies, args.topk,
             [&](std::int32_t c) { return args.ids_of(s.tokens[c]); });
    if (args.weights != nullptr)
      ctx.pack(to_be_at<float>(d, args.set.recv_weights, &FarLayout::weights, at, k), copies, args.topk,
               [&](std::int32_t c) { return args.weights_of(s.tokens[c]); });
    if (args.scales != nullptr)
      tell_scales(ctx, to_be_at<std::byte>(d, args.set.recv_scales, &FarLayout::scales, at, args.scale_bytes), copies);
    ctx.warp_sync();  // all have done with these tokens
  }
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void tell_scales(Ctx& ctx, std::byte* to, std::int32_t copies) const {
    using Word = std::uint32_t;
    if ((reinterpret_cast<std::uintptr_t>(args.scales) | args.scales_stride | args.scale_bytes) % sizeof(Word) == 0)
      ctx.pack(reinterpret_cast<Word*>(to), copies, static_cast<std::int32_t>(args.scale_bytes / sizeof(Word)),
               [&](std::int32_t c) { return reinterpret_cast<const Word*>(args.scales_of(s.tokens[c])); });
    else
      ctx.pack(to, copies, static_cast<std::int32_t>(args.scale_bytes),
               [&](std::int32_t c) { return args.scales_of(s.tokens[c]); });
  }

  //! The ids and weights of the tile that begins at token t, for replay.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void keep_routing(Ctx& ctx, std::int32_t t) const {
    std::int32_t const tokens = end - t < Scratch::kTile ? end - t : Scratch::kTile;
    std::size_t const at = static_cast<std::size_t>(t) * static_cast<std::size_t>(args.topk);
    ctx.pack(args.port.peers.template mine<Index>(args.set.sent_ids) + at, tokens, args.topk,
             [&](std::int32_t i) { return args.ids_of(t + i); });
    if (args.weights != nullptr)
      ctx.pack(args.port.peers.template mine<float>(args.set.sent_weights) + at, tokens, args.topk,
               [&](std::int32_t i) { return args.weights_of(t + i); });
  }
};

}  // namespace mori_ep::schedule::intra_node
