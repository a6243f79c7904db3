// SPDX-License-Identifier: MIT
//! @file schedule::InterNode: nodes joined by a network, one copy of a row for each distinct rank.
#pragma once

#include "mori_ep/schedule/intra_node.hpp"

namespace mori_ep::schedule {

//! @brief IntraNode's kernels and protocol; what goes to a rank of another node they stage, and a network puts it to where
//!        a near rank would have stored it: the rows of one source lie side by side there, so they are one run. In
//!        combine a rank sends each far source the rows of its tokens, which lie side by side, too. One launch per phase.
struct InterNode {
  static constexpr const char* kName = "InterNode";
  static constexpr bool kNeedsPeerAccess = false;
  static constexpr bool kNeedsNetwork = true;
  using Half = intra_node::Half;
  template <class Transport, class Exec, class Quant, class Reduce, class Index>
  using Runner = intra_node::Runner<Transport, Exec, Quant, Reduce, Index>;
};

}  // namespace mori_ep::schedule
