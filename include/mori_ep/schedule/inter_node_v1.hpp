// SPDX-License-Identifier: MIT
//! @file schedule::InterNodeV1: nodes joined by a network, one copy of a token for each distinct node.
#pragma once

#include "mori_ep/schedule/intra_node.hpp"
#include "mori_ep/schedule/partial.hpp"

namespace mori_ep::schedule {

//! @brief IntraNode's kernels, with relays between nodes: a token crosses the network once for each node that it goes to,
//!        to its source's relay there (intra_node::Nodes), which passes it on by load and store to the ranks of its node
//!        while later chunks are on the wire. In combine the relay sums what its node returns, and sends one row back.
//!        One launch per phase, in which every block sends first and then relays, unless rdma_block_num of them only
//!        relay; of halves it is the sending one that relays, and waits for what it relays: dispatch_send for other nodes'
//!        records, combine_send for this node's rows.
//! @tparam Partial what of a node's sum crosses the network: partial::Wire or partial::Exact. With fp32 elements they are
//!         the same.
//! Source    MORI-EP user guide (InterNodeV1); DeepEP's normal kernels forward in chunks, too.
template <class Partial>
struct InterNodeV1With {
  static_assert(partial::PartialPolicy<Partial>,
                "schedule::InterNodeV1With: the parameter must say what relays send back. Use partial::Wire or "
                "partial::Exact.");
  static constexpr const char* kName = Partial::kExact ? "InterNodeV1 (exact)" : "InterNodeV1";
  static constexpr bool kNeedsPeerAccess = false;
  static constexpr bool kNeedsNetwork = true;
  using Half = intra_node::Half;
  template <class Transport, class Exec, class Quant, class Reduce, class Index>
  using Runner = intra_node::Runner<Transport, Exec, Quant, Reduce, Index,
                                    intra_node::RelayedRef<typename Transport::Ref, Partial::kExact>>;
};

using InterNodeV1 = InterNodeV1With<partial::Wire>;

}  // namespace mori_ep::schedule
