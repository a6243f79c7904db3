// SPDX-License-Identifier: MIT
//! @file What a schedule that sums at a relay sends back from there.
#pragma once

#include <concepts>

namespace mori_ep::partial {

//! @brief A policy says whether a node's sum keeps its fp32.
template <class P>
concept PartialPolicy = requires {
  { P::kExact } -> std::convertible_to<bool>;
  { P::kName } -> std::convertible_to<const char*>;
};

//! @brief Rounded to the element that combine returns: half the bytes of fp32, one more rounding for each node. Of rows
//!        that are coded by blocks then coded as these, so that codes cross the network.
struct Wire {
  static constexpr bool kExact = false;
  static constexpr const char* kName = "wire";
};
//! @brief fp32: the same bits as every other schedule gives for the same nodes.
struct Exact {
  static constexpr bool kExact = true;
  static constexpr const char* kName = "exact";
};
static_assert(PartialPolicy<Wire> && PartialPolicy<Exact>);

}  // namespace mori_ep::partial
