// SPDX-License-Identifier: MIT
//! @file Copies a ticket's routing out of its buffer set, so that it outlives the ticket.
#pragma once

#include <cstddef>

#include "mori_ep/exec/concepts.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief Two plain copies, in stream order behind the dispatch that wrote their sources.
struct CopyKernel {
  void *to_ids, *to_weights;
  const void *ids, *weights;
  std::size_t ids_bytes, weights_bytes;

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    if (ctx.block() != 0 || ctx.warp() != 0) return;
    if (ids_bytes != 0) ctx.copy(to_ids, ids, ids_bytes);
    if (weights_bytes != 0) ctx.copy(to_weights, weights, weights_bytes);
  }
};

}  // namespace mori_ep::schedule::intra_node
