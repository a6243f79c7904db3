// SPDX-License-Identifier: MIT
//! @file Combine inside a node: every source pulls the rows of its tokens and sums them, one launch.
//!
//! Which signal orders what. Let n be the epoch of the ticket's dispatch, d a rank that holds rows, s their source.
//!  1. s reads d's combine rows of n only after it has acquired combine_ready of n from d; d releases that word after
//!  all
//!     its blocks have staged and flushed their rows (or, zero-copy, after the kernel before, which wrote them).
//!  2. d overwrites those rows only after its dispatch n + 1 has completed, hence after s has entered dispatch n + 1,
//!     hence after s has finished this combine (dispatch_kernel.hpp, 4). So no barrier closes a combine.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/schedule/intra_node/dispatch_kernel.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief One rank's combine: y [t, H] = sum over the ranks each token went to, in ascending rank order, node by node.
template <class PeerRef, Element T, bool Weighted>
struct CombineKernel {
  FaultPort<PeerRef> port;
  SetLayout set;
  std::int32_t topk, routes_per_token, ranks_per_group;
  Half halves;
  std::int32_t tokens;
  const std::byte* x;    // [rows >= recv_count, H] to be staged, or nullptr: the rows are in the registered buffer
  const float* weights;  // [rows >= recv_count, K] to be summed into weights_out, or nullptr
  std::int64_t x_rows, weights_rows;
  std::byte* y;                                                        // [t, H]
  float* weights_out;                                                  // [t, K], or nullptr
  std::size_t x_stride, weights_stride, y_stride, weights_out_stride;  // bytes, elements, bytes, elements
  std::size_t hidden;

  [[nodiscard]] static std::size_t shared_bytes(int topk, int warps) noexcept {
    return 4 * sizeof(std::uint32_t) +
           static_cast<std::size_t>(warps) * static_cast<std::size_t>(topk) * (sizeof(std::byte*) + sizeof(float)) + 64;
  }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    auto* flags = ctx.template shared<std::uint32_t>(4);
    auto const k = static_cast<std::size_t>(topk), warps = static_cast<std::size_t>(ctx.warps()),
               warp = static_cast<std::size_t>(ctx.warp());
    auto** sources = ctx.template shared<const std::byte*>(warps * k) + warp * k;
    auto* factors = ctx.template shared<float>(warps * k) + warp * k;
    bool const leader = ctx.warp() == 0 && ctx.lane() == 0;
    auto* state = port.peers.template mine<SetState>(set.state);
    if (leader) {
      flags[kStopped] = port.failed(ctx) ? 1 : 0;
      flags[kUnready] = 0;
    }
    ctx.block_sync();
    bool stopped = flags[kStopped] != 0;
    std::uint32_t const epoch = ctx.load(&state->epoch);

    if (has(halves, Half::send)) {
      if (!stopped) stage(ctx, state, epoch);
      // As in dispatch: every warp flushes, the block meets, and the last block to arrive publishes for all.
      ctx.flush_stores();
      ctx.block_sync();
      if (leader && ctx.arrive(&state->combine_staged) && !port.failed(ctx))
        for (std::int32_t peer = 0; peer < port.peers.world; ++peer)
          ctx.signal(port.peers.template at<std::uint64_t>(peer, set.combine_ready) + port.peers.rank, epoch, 0);
    }
    if (has(halves, Half::recv) && !stopped) {
      auto* ready = port.peers.template mine<std::uint64_t>(set.combine_ready);
      for (std::int32_t peer = ctx.warp() * Ctx::lanes + ctx.lane(); peer < port.peers.world;
           peer += ctx.warps() * Ctx::lanes)
        if (!port.await(ctx, ready + peer, epoch, Phase::combine_ready, peer)) {
          ctx.shared_add(flags + kUnready, 1u);
          break;
        }
      ctx.block_sync();
      if (flags[kUnready] == 0)
        for (std::int32_t t = ctx.block() * ctx.warps() + ctx.warp(); t < tokens; t += ctx.blocks() * ctx.warps())
          reduce_token(ctx, sources, factors, t);
    }
    ctx.flush_stores();
    ctx.block_sync();
    if (leader && ctx.arrive(&state->combine_blocks))
      ctx.publish(&state->launches_done, ctx.load(&state->launches_done) + 1);
  }

 private:
  enum Flag : std::int32_t { kStopped = 0, kUnready = 1 };

  //! Copies the caller's rows into the registered buffer, where peers can read them.
  template <class Ctx>
  MORI_EP_HD void stage(Ctx& ctx, SetState* state, std::uint32_t epoch) const {
    std::int32_t const rows = ctx.load(&state->totals.recv_count);
    if ((x != nullptr && x_rows < rows) || (weights != nullptr && weights_rows < rows)) {
      if (ctx.block() == 0 && ctx.warp() == 0 && ctx.lane() == 0)
        port.raise(ctx, Errc::invalid_argument, Phase::combine_stage, port.peers.rank, epoch, epoch,
                   x != nullptr && x_rows < rows ? x_rows : weights_rows, rows);
      return;
    }
    std::size_t const row_bytes = hidden * sizeof(T);
    auto const k = static_cast<std::size_t>(topk);
    for (std::int32_t r = ctx.block() * ctx.warps() + ctx.warp(); r < rows; r += ctx.blocks() * ctx.warps()) {
      auto const row = static_cast<std::size_t>(r);
      if (x != nullptr) {
        std::byte* target = port.peers.template mine<std::byte>(set.combine_x) + row * row_bytes;
        ctx.multicast_row(x + row * x_stride, &target, 1, row_bytes);
      }
      if (weights != nullptr)
        ctx.copy(port.peers.template mine<float>(set.combine_weights) + row * k, weights + row * weights_stride,
                 k * sizeof(float));
    }
  }

  template <class Ctx>
  MORI_EP_HD void reduce_token(Ctx& ctx, const std::byte** sources, float* factors, std::int32_t t) const {
    auto const token = static_cast<std::size_t>(t);
    auto* routes =
        port.peers.template mine<routing::RouteEntry>(set.routes) + token * static_cast<std::size_t>(routes_per_token);
    std::int32_t copies = 0, node = -1;
    std::uint32_t group_starts = 0;
    for (; copies < routes_per_token; ++copies) {
      routing::RouteEntry const entry = ctx.load(routes + copies);
      if (entry.rank < 0) break;
      if (entry.rank / ranks_per_group != node) group_starts |= 1u << copies;
      node = entry.rank / ranks_per_group;
      if (ctx.lane() == 0) {
        sources[copies] = port.peers.template at<std::byte>(entry.rank, set.combine_x) +
                          static_cast<std::size_t>(entry.row) * hidden * sizeof(T);
        factors[copies] = entry.weight;
      }
    }
    ctx.warp_sync();
    std::byte* out = y + token * y_stride;
    if (copies == 0)
      ctx.zero_row(out, hidden * sizeof(T));
    else
      ctx.template reduce_rows<T, Weighted>(sources, factors, copies, group_starts, out, hidden);
    if (weights_out != nullptr)
      for (std::int32_t k = ctx.lane(); k < topk; k += Ctx::lanes)
        ctx.store(weights_out + token * weights_out_stride + k, reduce_weight(ctx, routes, copies, group_starts, k));
    ctx.warp_sync();
  }

  //! Weight k of one token, summed as its row is: node by node, in ascending rank order.
  template <class Ctx>
  MORI_EP_HD float reduce_weight(Ctx& ctx, const routing::RouteEntry* routes, std::int32_t copies,
                                 std::uint32_t group_starts, std::int32_t k) const {
    float total = 0, group = 0;
    bool closed = false;
    for (std::int32_t i = 0; i < copies; ++i) {
      routing::RouteEntry const entry = ctx.load(routes + i);
      float const term = ctx.load(port.peers.template at<float>(entry.rank, set.combine_weights) +
                                  static_cast<std::ptrdiff_t>(entry.row) * topk + k);
      if (i != 0 && ((group_starts >> i) & 1u) != 0) {
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
