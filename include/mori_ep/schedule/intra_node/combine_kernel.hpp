// SPDX-License-Identifier: MIT
//! @file Combine inside a node: every source pulls the rows of its tokens and sums them, one launch.
//!
//! Which signal orders what. Let n be the epoch of the ticket's dispatch, d a rank that holds rows, s their source.
//!  1. s reads d's combine rows of n only after it has acquired combine_ready of n from d; d releases that word after
//!     all its blocks have staged and flushed their rows (or, zero-copy, after the launch before, which wrote them).
//!  2. d overwrites those rows only after its dispatch n + 1 has completed, hence after s has entered dispatch n + 1,
//!     hence after s has finished this combine (dispatch_kernel.hpp, 4). So no barrier closes a combine.
//!  3. A far source s cannot pull: d asks the network to put the rows of s's tokens, which lie side by side, to s's
//!     arena, and s acquires far.ready of n, a word for each run. The network has read d's rows then, so 2 holds as it
//!     stands; and d puts there again in combine n + 1, after its dispatch n + 1 has heard s's counts of n + 1, which s
//!     publishes in a stream that has finished combine n. A ticket may be dropped between its two halves: then it is
//!     dispatch n + 1 of s that acquires far.ready of n from d, before it tells d its counts (announce_far). With relays
//!     a rank of each other node sums there, and sends one row for each token: relay.hpp, 4.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/routing/route.hpp"
#include "mori_ep/schedule/intra_node/fault.hpp"
#include "mori_ep/schedule/intra_node/relay_combine.hpp"
#include "mori_ep/schedule/intra_node/work_split.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One rank's combine: y [t, H] = sum over the ranks each token went to, in ascending rank order, node by node.
//!        R: the form of the rows in the registered buffer.
template <class PeerRef, RowForm R, bool Weighted>
struct CombineKernel {
  using T = RowElement<R>;
  static constexpr bool kCoded = CodedRowType<R>;  // on the way into the registered buffer
  static constexpr bool kExact = sum_form<PeerRef, R>() == SumForm::fp32;

  FaultPort<PeerRef> port;
  SetLayout set;
  [[no_unique_address]] FarLayoutOf<PeerRef> far;
  std::int32_t topk, routes_per_token, ranks_per_group, max_tokens;
  std::int32_t relay_blocks;  // the last blocks, which sum for other nodes; 0: all
  Half halves;
  const std::byte* x;    // [rows >= recv_count, H] to be staged, or nullptr: the rows are in the registered buffer
  const float* weights;  // [rows >= recv_count, K] to be summed into weights_out, or nullptr
  std::int64_t x_rows, weights_rows;
  std::byte* y;                                                        // [t, H]
  float* weights_out;                                                  // [t, K], or nullptr
  std::size_t x_stride, weights_stride, y_stride, weights_out_stride;  // bytes, elements, bytes, elements
  std::size_t hidden;

  static constexpr bool kReducesRows = true;  // the machine's row sums may want scratch of their own

  [[nodiscard]] static constexpr std::size_t shared_bytes(int world, int topk, int warps) noexcept {
    return static_cast<std::size_t>(world) * sizeof(std::byte*) + kFlags * sizeof(std::uint32_t) +
           static_cast<std::size_t>(warps) * static_cast<std::size_t>(topk) * (sizeof(std::byte*) + 2 * sizeof(float)) +
           64;
  }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    Scratch const s = carve(ctx);
    auto* state = port.peers.template mine<SetState>(set.state);
    MORI_EP_ROLLED
    for (std::int32_t i = thread(ctx); i < port.peers.world; i += threads(ctx))
      s.table[i] = ctx.load(port.peers.bases + i);
    std::uint32_t const epoch = ctx.load(&state->epoch);
    std::int32_t const tokens = ctx.load(&state->tokens);
    if (thread(ctx) == 0) {
      s.flags[kStopped] = port.failed(ctx) ? 1 : 0;
      s.flags[kUnready] = s.flags[kNodeUnready] = 0;
      s.flags[kOffers] = 0;
    }
    ctx.block_sync();
    bool const stopped = s.flags[kStopped] != 0;

    if (has(halves, Half::send)) offer(ctx, s, state, epoch, stopped);
    if constexpr (PeerRef::kRelays)
      if (has(halves, Half::send) && !stopped && await_rows(ctx, s, epoch, false)) return_sums(ctx, s, state, epoch);
    if (has(halves, Half::recv) && !stopped) {
      // Neighbouring groups of warps, and then blocks, take neighbouring tokens: what is read at one time lies
      // together.
      // Where a sum is written and read again, in another form, a warp must not wait for others' parts of it.
      WarpShare const share =
          kCoded && sums_own_first<PeerRef, R>()
              ? WarpShare::alone(ctx.warp(), ctx.warps())
              : WarpShare::of(ctx.warp(), ctx.warps(), quotient(tokens + ctx.blocks() - 1, ctx.blocks()),
                              Ctx::warps_per_sum(payload_bytes_of<R>(hidden)));
      std::int32_t const step = ctx.blocks() * share.groups,
                         first = share.group < share.groups ? ctx.block() * share.groups + share.group : tokens;
      bool ready = false;
      MORI_EP_ROLLED
      for (std::int32_t t = first;; t += step) {
        // Where the first token's rows are is known before they are ready.
        Sources const sources = t < tokens ? locate(ctx, s, t) : Sources{};
        if (!ready) ready = await_rows(ctx, s, epoch, true);
        if (!ready || t >= tokens) break;
        reduce_token(ctx, s, t, sources, share);
      }
    }
    ctx.flush_stores();
    ctx.block_sync();
    if (thread(ctx) == 0) ctx.launch_ends(&state->blocks_ended);
  }

 private:
  enum Flag : std::int32_t { kStopped = 0, kUnready, kNodeUnready, kOffers, kFlags };

  struct Scratch {
    PeerRef peers;         // through `table`
    std::byte** table;     // [W] arena bases
    std::uint32_t* flags;  // [kFlags]
    // of this warp, for the token it is at:
    const std::byte** sources;  // [K] its rows
    float* factors;             // [K] their weights
    std::int32_t* nodes;        // [K] the node of each, where ranks are grouped
  };

  template <class Ctx>
  MORI_EP_HD Scratch carve(Ctx& ctx) const {
    auto const k = static_cast<std::size_t>(topk), warps = static_cast<std::size_t>(ctx.warps()),
               warp = static_cast<std::size_t>(ctx.warp());
    Scratch s;
    s.table = ctx.template shared<std::byte*>(static_cast<std::size_t>(port.peers.world));
    s.peers = port.peers.with_table(s.table);
    s.sources = ctx.template shared<const std::byte*>(warps * k) + warp * k;
    s.factors = ctx.template shared<float>(warps * k) + warp * k;
    s.nodes = ctx.template shared<std::int32_t>(warps * k) + warp * k;
    s.flags = ctx.template shared<std::uint32_t>(kFlags);
    return s;
  }

  MORI_EP_HD std::uint64_t* tell_ready(const Scratch& s, std::int32_t peer) const {
    return port.tell(peer, [&](std::int32_t at, std::int32_t from) {
      return s.peers.template at<std::uint64_t>(at, set.combine_ready) + from;
    });
  }
  //! Puts this rank's rows where peers can read them and says so.
  template <class Ctx>
  MORI_EP_HD void offer(Ctx& ctx, const Scratch& s, SetState* state, std::uint32_t epoch, bool stopped) const {
    if (!kCoded && x == nullptr && weights == nullptr && weights_out == nullptr) {
      // Zero-copy: the launch before wrote the rows, and the start of this one orders them.
      MORI_EP_ROLLED
      for (std::int32_t peer = ctx.block() * threads(ctx) + thread(ctx); peer < port.peers.world && !stopped;
           peer += ctx.blocks() * threads(ctx))
        if (!port.reaches_far(peer)) ctx.signal_after_launch(tell_ready(s, peer), epoch, 0);
      if constexpr (PeerRef::kFar && !PeerRef::kRelays)
        if (ctx.block() == 0 && ctx.warp() == 0 && !stopped) offer_far(ctx, state, epoch);
      return;
    }
    if (!stopped) stage(ctx, state, epoch);
    // Every warp flushes before its block meets, and an arrival releases what the block did and acquires what earlier
    // blocks did: so the last to arrive publishes for all.
    ctx.flush_stores();
    ctx.block_sync();
    if (thread(ctx) == 0 && ctx.arrive(&state->combine_staged) && !port.failed(ctx)) {
      s.flags[kOffers] = 1;
      MORI_EP_ROLLED
      for (std::int32_t peer = 0; peer < port.peers.world; ++peer)
        if (!port.reaches_far(peer)) ctx.signal(tell_ready(s, peer), epoch, 0);
    }
    if constexpr (PeerRef::kFar && !PeerRef::kRelays) {
      ctx.block_sync();
      if (s.flags[kOffers] != 0 && ctx.warp() == 0) offer_far(ctx, state, epoch);
    }
  }
  //! Sends far ranks the rows of their tokens, which lie side by side, and says so. By a whole warp.
  template <class Ctx>
  MORI_EP_HD void offer_far(Ctx& ctx, SetState* state, std::uint32_t epoch) const {
    if (ctx.lane() == 0) ctx.store(&state->combine_sent, epoch);
    MORI_EP_ROLLED
    for (std::int32_t peer = 0; peer < port.peers.world; ++peer) {
      if (!port.reaches_far(peer)) continue;
      FarPlace const place = ctx.load(port.peers.template mine<FarPlace>(far.places) + peer);
      std::size_t word = static_cast<std::size_t>(port.peers.rank) * kFarReturns;
      auto const put = [&](const comm::Region& from, const comm::Region& to, std::size_t width) {
        port.put_far(ctx, peer,
                     {.from = from.offset + static_cast<std::size_t>(place.first) * width,
                      .there = to.offset + place.there * width,
                      .bytes = static_cast<std::size_t>(place.rows) * width},
                     far.ready.offset + word++ * sizeof(std::uint64_t), epoch, Phase::combine_ready);
      };
      put(set.combine_x, far.in_x, row_bytes_of<R>(hidden));
      put(set.combine_weights, far.in_weights, weights == nullptr ? 0 : static_cast<std::size_t>(topk) * sizeof(float));
    }
  }

  //! Copies the caller's rows into the registered buffer.
  template <class Ctx>
  MORI_EP_HD void stage(Ctx& ctx, SetState* state, std::uint32_t epoch) const {
    std::int32_t const rows = ctx.load(&state->totals.recv_count);
    // Weights that are asked for must be sent by whoever has rows.
    bool const short_x = (kCoded || x != nullptr) && x_rows < rows;
    bool const short_weights = (weights != nullptr || weights_out != nullptr) && weights_rows < rows;
    if (short_x || short_weights) {
      if (ctx.block() == 0 && thread(ctx) == 0)
        port.raise(ctx, Errc::invalid_argument, Phase::combine_stage, port.peers.rank, epoch, epoch,
                   short_x ? x_rows : weights_rows, rows, short_x ? Operand::combine_rows : Operand::combine_weights);
      return;
    }
    std::size_t const row_bytes = row_bytes_of<R>(hidden);
    auto const k = static_cast<std::size_t>(topk);
    MORI_EP_ROLLED
    for (std::int32_t r = ctx.block() * ctx.warps() + ctx.warp(); r < rows; r += ctx.blocks() * ctx.warps()) {
      auto const row = static_cast<std::size_t>(r);
      if (x != nullptr) {
        std::byte* target = port.peers.template mine<std::byte>(set.combine_x) + row * row_bytes;
        if constexpr (kCoded) {
          std::byte* scales = target + R::payload_bytes(hidden);
          ctx.template encode_row<R>(
              x + row * x_stride, &target, &scales, [] { return 1; }, hidden, 0, 1);
        } else {
          ctx.multicast_row(
              x + row * x_stride, &target, [] { return 1; }, row_bytes, 0, 1);
        }
      }
      if (weights != nullptr)
        ctx.pack(port.peers.template mine<float>(set.combine_weights) + row * k, 1, topk,
                 [&](std::int32_t) { return weights + row * weights_stride; });
    }
  }

  //! Sends back what this rank sums for sources of other nodes.
  template <class Ctx>
  MORI_EP_HD void return_sums(Ctx& ctx, const Scratch& s, SetState* state, std::uint32_t epoch) const {
    if (ctx.block() == 0 && thread(ctx) == 0) ctx.store(&state->combine_sent, epoch);
    SumReturner<PeerRef, R, Weighted>{.port = port,
                                      .far = far,
                                      .peers = s.peers,
                                      .combine_x = set.combine_x,
                                      .combine_weights = set.combine_weights,
                                      .topk = topk,
                                      .max_tokens = max_tokens,
                                      .relay_blocks = relay_blocks,
                                      .hidden = hidden,
                                      .epoch = epoch,
                                      .sources = s.sources,
                                      .row_factors = s.factors}
        .run(ctx);
  }

  //! Acquires every peer's rows; with relays those of this node and, `all`, the sums of the others. False when a peer did
  //! not come.
  template <class Ctx>
  MORI_EP_HD bool await_rows(Ctx& ctx, const Scratch& s, std::uint32_t epoch, bool all) const {
    // Two calls have a flag each: not all have read the first's when the second begins.
    std::uint32_t* const unready = s.flags + (all ? kUnready : kNodeUnready);
    auto* ready = port.peers.template mine<std::uint64_t>(set.combine_ready);
    MORI_EP_ROLLED
    for (std::int32_t peer = thread(ctx); peer < port.peers.world; peer += threads(ctx)) {
      if (PeerRef::kRelays && port.peers.is_far(peer)) continue;
      if (!await_peer(ctx, ready + peer, epoch, peer)) {
        ctx.shared_add(unready, 1u);
        break;
      }
    }
    if constexpr (PeerRef::kRelays)
      if (all && !await_sums(ctx, port, far, epoch, 0, far.nodes.count())) ctx.shared_add(unready, 1u);
    ctx.block_sync();
    return *unready == 0;
  }

  //! What comes back from a near peer is there when it says so; from a far one it comes in parts.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD bool await_peer(Ctx& ctx, std::uint64_t* ready, std::uint32_t epoch,
                                           std::int32_t peer) const {
    if constexpr (PeerRef::kFar && !PeerRef::kRelays)
      if (port.reaches_far(peer)) {
        auto* parts = port.peers.template mine<std::uint64_t>(far.ready) + peer * kFarReturns;
        MORI_EP_ROLLED
        for (std::int32_t i = 0; i < kFarReturns; ++i)
          if (!port.await(ctx, parts + i, epoch, Phase::combine_ready, peer)) return false;
        return true;
      }
    return port.await(ctx, ready, epoch, Phase::combine_ready, peer);
  }

  MORI_EP_HD const routing::RouteEntry* routes_of(std::int32_t t) const {
    return port.peers.template mine<routing::RouteEntry>(set.routes) +
           static_cast<std::size_t>(t) * static_cast<std::size_t>(routes_per_token);
  }

  //! A copy's row of `width` elements: in its rank's memory, or, of a far rank, where the network has put it.
  template <class V, class Ctx>
  [[nodiscard]] MORI_EP_HD const V* came_back(Ctx& ctx, const PeerRef& peers, routing::RouteEntry entry,
                                              const comm::Region& there, comm::Region FarLayout::*back,
                                              std::size_t width) const {
    if constexpr (PeerRef::kRelays) {
      if (entry.rank >= port.peers.world)  // a node's sum
        return reinterpret_cast<const V*>(port.peers.template mine<std::byte>(far.returned) +
                                          static_cast<std::size_t>(entry.row) * far.record.back_bytes +
                                          (std::same_as<V, float> ? far.record.back_weights : 0));
    } else if constexpr (PeerRef::kFar)
      if (port.peers.is_far(entry.rank)) {
        FarPlace const place = ctx.load(port.peers.template mine<FarPlace>(far.places) + entry.rank);
        return port.peers.template mine<V>(far.*back) +
               static_cast<std::size_t>(static_cast<std::uint32_t>(entry.row) + place.shift) * width;
      }
    return peers.template at<V>(entry.rank, there) + static_cast<std::size_t>(entry.row) * width;
  }

  //! How many rows a token's sum has, and which of them open a group.
  struct Sources {
    std::int32_t count = 0;
    std::uint32_t group_starts = 1;
  };

  //! Looks up where the rows of token t are, one per lane.
  template <class Ctx>
  MORI_EP_HD Sources locate(Ctx& ctx, const Scratch& s, std::int32_t t) const {
    bool const grouped = ranks_per_group < port.peers.world;  // with relays: are there several nodes?
    Sources sources;
    ctx.warp_sync();
    MORI_EP_ROLLED
    for (std::int32_t from = 0; from < routes_per_token; from += Ctx::lanes) {
      std::int32_t const i = from + ctx.lane();
      routing::RouteEntry const entry = i < routes_per_token ? ctx.load(routes_of(t) + i) : routing::RouteEntry{};
      sources.count += routing::count_bits(ctx.ballot(entry.rank >= 0));
      if (entry.rank < 0) continue;
      s.sources[i] =
          came_back<std::byte>(ctx, s.peers, entry, set.combine_x, &FarLayout::in_x, row_bytes_of<R>(hidden));
      if constexpr (Weighted)
        s.factors[i] = ctx.load(port.peers.template mine<float>(set.route_weights) +
                                static_cast<std::ptrdiff_t>(t) * routes_per_token + i);
      if (grouped)
        s.nodes[i] = PeerRef::kRelays && entry.rank >= port.peers.world ? entry.rank - port.peers.world
                                                                        : quotient(entry.rank, ranks_per_group);
    }
    ctx.warp_sync();
    MORI_EP_ROLLED
    for (std::int32_t i = 1; grouped && i < sources.count; ++i)
      if (s.nodes[i] != s.nodes[i - 1]) sources.group_starts |= 1u << i;
    return sources;
  }

  template <class Ctx>
  MORI_EP_HD void reduce_token(Ctx& ctx, const Scratch& s, std::int32_t t, const Sources& sources,
                               const WarpShare& share) const {
    auto const token = static_cast<std::size_t>(t);
    std::byte* out = y + token * y_stride;
    if (sources.count == 0)
      ctx.zero_row(out, hidden * sizeof(T), share.part, share.parts);
    else if constexpr (sums_own_first<PeerRef, R>())
      reduce_by_nodes(ctx, s, token, sources.count, out, share);
    else
      ctx.template reduce_rows<R, Weighted>(s.sources, s.factors, sources.count, sources.group_starts, out, hidden,
                                            share.part, share.parts);
    if (weights_out == nullptr || share.part != 0) return;
    MORI_EP_ROLLED
    for (std::int32_t k = ctx.lane(); k < topk; k += Ctx::lanes)
      ctx.store(weights_out + token * weights_out_stride + k, reduce_weight(ctx, routes_of(t), sources, k));
  }

  //! The rows of this node first, to a sum as relays send it; then that and the other nodes' sums.
  template <class Ctx>
  MORI_EP_HD void reduce_by_nodes(Ctx& ctx, const Scratch& s, std::size_t token, std::int32_t count, std::byte* out,
                                  const WarpShare& share) const {
    std::int32_t const here = quotient(port.peers.rank, ranks_per_group);
    bool const grouped = ranks_per_group < port.peers.world;
    std::int32_t begin = 0, end = grouped ? 0 : count;
    MORI_EP_ROLLED
    for (std::int32_t i = 0; grouped && i < count; ++i) {
      if (s.nodes[i] < here) begin = end = i + 1;
      if (s.nodes[i] == here) end = i + 1;
    }
    if (end - begin == count) {
      ctx.template reduce_rows<R, Weighted>(s.sources, s.factors, count, 1, out, hidden, share.part, share.parts);
      return;
    }
    if (end > begin) {
      std::byte* const own = port.peers.template mine<std::byte>(far.own) + token * far.record.back_bytes;
      if constexpr (kExact)
        ctx.template sum_rows<R, Weighted>(s.sources + begin, s.factors + begin, end - begin, own, hidden, share.part,
                                           share.parts);
      else
        ctx.template reduce_rows<R, Weighted>(s.sources + begin, s.factors + begin, end - begin, 1, own, hidden,
                                              share.part, share.parts);
      ctx.warp_sync();
      if (ctx.lane() == 0) {
        s.sources[begin] = own;
        for (std::int32_t i = end; i < count; ++i) s.sources[begin + 1 + i - end] = s.sources[i];
      }
      ctx.warp_sync();
      count -= end - begin - 1;
    }
    if constexpr (kExact)
      ctx.template round_rows<T>(s.sources, count, out, hidden, share.part, share.parts);
    else
      ctx.template reduce_rows<T, false>(s.sources, nullptr, count, 1, out, hidden, share.part, share.parts);
  }

  //! Weight k of one token, summed as its row is: node by node, in ascending rank order.
  template <class Ctx>
  MORI_EP_HD float reduce_weight(Ctx& ctx, const routing::RouteEntry* routes, const Sources& sources,
                                 std::int32_t k) const {
    float total = 0, group = 0;
    bool closed = false;
    MORI_EP_ROLLED
    for (std::int32_t i = 0; i < sources.count; ++i) {
      routing::RouteEntry const entry = ctx.load(routes + i);
      float const term = ctx.load(came_back<float>(ctx, port.peers, entry, set.combine_weights, &FarLayout::in_weights,
                                                   static_cast<std::size_t>(topk)) +
                                  k);
      if (i != 0 && ((sources.group_starts >> i) & 1u) != 0) {
        total = closed ? total + group : group;
        closed = true;
        group = term;
      } else {
        group = i == 0 ? term : group + term;
      }
    }
    return closed ? total + group : group;
  }
};

}  // namespace mori_ep::schedule::intra_node
