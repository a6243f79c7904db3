// SPDX-License-Identifier: MIT
//! @file Side kernels on a buffer set: their ends are counted, so that the set is not freed under them.
#pragma once

#include <cstddef>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/schedule/intra_node/layout.hpp"
#include "mori_ep/schedule/intra_node/work_split.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief Runs `Kernel` and counts its blocks as they end.
template <class Kernel>
struct CountedKernel {
  Kernel kernel;
  SetState* state;
  static constexpr bool kReducesRows = [] {
    if constexpr (requires { Kernel::kReducesRows; })
      return Kernel::kReducesRows;
    else
      return false;
  }();

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    kernel(ctx);
    ctx.block_sync();
    if (ctx.warp() == 0 && ctx.lane() == 0) ctx.launch_ends(&state->blocks_ended);
  }
};

//! @brief Copies a ticket's routing out of its buffer set, so that it outlives the ticket. Tokens that were not
//!        dispatched (past a device-side count, or after a fault) go to no expert.
template <routing::IndexType Index>
struct KeepKernel {
  Index* to_ids;      // [tokens, topk]
  float* to_weights;  // [tokens, topk], or nullptr
  const Index* ids;
  const float* weights;
  const SetState* state;
  const FaultGate* gate;
  std::int32_t tokens, topk;

  [[nodiscard]] static std::size_t shared_bytes(int) noexcept { return 0; }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    std::int32_t const sent = ctx.glance(&gate->failed) != 0 ? 0 : ctx.load(&state->tokens);
    std::int32_t const first = ctx.block() * threads(ctx) + thread(ctx), step = ctx.blocks() * threads(ctx);
    for (std::int32_t i = first; i < tokens * topk; i += step) {
      bool const dispatched = i < sent * topk;
      ctx.store(to_ids + i, dispatched ? ctx.load(ids + i) : static_cast<Index>(routing::kNoExpert));
      if (to_weights != nullptr) ctx.store(to_weights + i, dispatched ? ctx.load(weights + i) : 0.0f);
    }
  }
};

//! @brief Copies a dispatch's totals to where the host can read them. A kernel, since the runtime's own copies share
//!        queues: one may wait behind the copy of another rank, which waits for this rank.
struct TotalsKernel {
  const routing::RecvTotals* from;
  routing::RecvTotals* to;

  [[nodiscard]] static std::size_t shared_bytes(int) noexcept { return 0; }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    if (ctx.block() != 0 || thread(ctx) != 0) return;
    ctx.store(&to->recv_count, ctx.load(&from->recv_count));
    ctx.store(&to->total, ctx.load(&from->total));
    ctx.store(&to->dropped, ctx.load(&from->dropped));
    ctx.store(&to->invalid_ids, ctx.load(&from->invalid_ids));
  }
};

}  // namespace mori_ep::schedule::intra_node
