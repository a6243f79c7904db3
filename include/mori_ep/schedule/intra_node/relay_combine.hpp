// SPDX-License-Identifier: MIT
//! @file Combine between nodes by relays: each sums the rows that its node returns for a record, and sends one row back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/numeric/coded_row.hpp"
#include "mori_ep/schedule/intra_node/relay.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief This rank as the relay of others, in a combine. Weighted: with the copies' weights, which dispatch has kept. R:
//!        the form of the rows.
template <class PeerRef, RowForm R, bool Weighted>
struct SumReturner {
  const FaultPort<PeerRef>& port;
  const RelayLayout& far;
  PeerRef peers;  // through a block's table
  comm::Region combine_x, combine_weights;
  std::int32_t topk, max_tokens, relay_blocks;
  std::size_t hidden;
  std::uint32_t epoch;
  const std::byte** sources;  // [K] of this warp
  float* row_factors;         // [K] of this warp

  using Sum = SumRow<PeerRef, R>;

  //! @brief This warp's share; the rows of this node have been acquired.
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void run(Ctx& ctx) const {
    RelayWalk<PeerRef> const walk{port, far, max_tokens, relay_blocks};
    using Chunk = typename RelayWalk<PeerRef>::Chunk;
    auto* relayed = port.peers.template mine<std::int32_t>(far.relayed);
    (void)walk.walk(
        ctx, [&](std::int32_t slot, std::int32_t) { return ctx.load(relayed + slot); },
        [](const Chunk&) { return true; },
        [&](const Chunk& chunk, std::int32_t i) {
          std::byte* const elements =
              CodedRowType<Sum> ? walk.elements(chunk.slot, i, row_bytes_of<RowElement<R>>(hidden)) : nullptr;
          sum(ctx, walk.record(chunk.slot, i), walk.factors(chunk.slot, i), elements, walk.sum(chunk.slot, i));
          ctx.flush_stores();
          ctx.warp_sync();
          auto* counter = port.peers.template mine<std::uint32_t>(far.summed) + chunk.slot * far.chunks + chunk.number;
          if (!completes(ctx, counter, 1, chunk.end - chunk.begin)) return;
          std::size_t const each = far.record.back_bytes;
          std::int32_t const here = far.nodes.of(port.peers.rank),
                             there = Nodes::other(here, far.nodes.of(chunk.source)) * max_tokens + chunk.begin;
          std::int32_t const word = here * far.chunks + chunk.number;
          port.put_far(ctx, chunk.source,
                       {.from = far.back.offset + walk.index(chunk.slot, chunk.begin) * each,
                        .there = far.returned.offset + static_cast<std::size_t>(there) * each,
                        .bytes = static_cast<std::size_t>(chunk.end - chunk.begin) * each},
                       far.ready.offset + static_cast<std::size_t>(word) * sizeof(std::uint64_t), epoch,
                       Phase::combine_ready);
        });
  }

 private:
  template <class Ctx>
  MORI_EP_BODY MORI_EP_HD void sum(Ctx& ctx, const std::byte* record, const float* factors, std::byte* elements,
                                   std::byte* out) const {
    auto const* rows = reinterpret_cast<const std::int32_t*>(record + far.record.rows);
    std::int32_t const first = port.peers.near.begin, ranks = port.peers.near.end - first;
    std::int32_t const count = each_kept(ctx, rows, ranks, [&](std::int32_t at, std::int32_t r, std::int32_t row) {
      sources[at] =
          peers.template at<std::byte>(first + r, combine_x) + static_cast<std::size_t>(row) * row_bytes_of<R>(hidden);
      if constexpr (Weighted) row_factors[at] = ctx.load(factors + r);
    });
    if (count == 0) {
      ctx.zero_row(out, row_bytes_of<Sum>(hidden), 0, 1);
    } else if constexpr (sum_form<PeerRef, R>() == SumForm::fp32) {
      ctx.template sum_rows<R, Weighted>(sources, row_factors, count, out, hidden, 0, 1);
    } else if constexpr (CodedRowType<Sum>) {
      ctx.template reduce_rows<R, Weighted>(sources, row_factors, count, 1, elements, hidden, 0, 1);
      ctx.warp_sync();  // a lane codes what others have summed
      std::byte* scales = out + Sum::payload_bytes(hidden);
      ctx.template encode_row<Sum>(
          elements, &out, &scales, [] { return 1; }, hidden, 0, 1);
    } else {
      ctx.template reduce_rows<R, Weighted>(sources, row_factors, count, 1, out, hidden, 0, 1);
    }
    // Weights always: those who asked for none look at none, and a relay without rows need not have given any.
    by_lane(ctx, topk, [&](std::int32_t k) {
      float total = 0;
      bool any = false;
      MORI_EP_ROLLED
      for (std::int32_t r = 0; r < ranks; ++r) {
        std::int32_t const row = ctx.load(rows + r);
        if (row < 0) continue;
        float const term = ctx.load(peers.template at<float>(first + r, combine_weights) +
                                    static_cast<std::size_t>(row) * static_cast<std::size_t>(topk) + k);
        total = any ? total + term : term;
        any = true;
      }
      ctx.store(reinterpret_cast<float*>(out + far.record.back_weights) + k, total);
    });
    ctx.warp_sync();  // all have done with these sources
  }
};

}  // namespace mori_ep::schedule::intra_node
