// SPDX-License-Identifier: MIT
//! @file Side kernels on a buffer set: their ends are counted, so that the set is not freed under them.
#pragma once

#include <cstddef>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/schedule/intra_node/layout.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief Runs `Kernel` and counts its blocks as they end.
template <class Kernel>
struct CountedKernel {
  Kernel kernel;
  SetState* state;

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    kernel(ctx);
    ctx.block_sync();
    if (ctx.warp() == 0 && ctx.lane() == 0) ctx.launch_ends(&state->blocks_ended);
  }
};

//! @brief Copies a ticket's routing out of its buffer set, so that it outlives the ticket. Two plain copies, in stream
//! order behind the dispatch that wrote their sources.
struct CopyKernel {
  void *to_ids, *to_weights;
  const void *ids, *weights;
  std::size_t ids_bytes, weights_bytes;

  [[nodiscard]] static std::size_t shared_bytes(int) noexcept { return 0; }

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    if (ctx.block() != 0 || ctx.warp() != 0) return;
    if (ids_bytes != 0) ctx.copy(to_ids, ids, ids_bytes);
    if (weights_bytes != 0) ctx.copy(to_weights, weights, weights_bytes);
  }
};

}  // namespace mori_ep::schedule::intra_node
