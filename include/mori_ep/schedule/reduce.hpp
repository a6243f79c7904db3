// SPDX-License-Identifier: MIT
//! @file What combine does with the rows that come back for a token.
#pragma once

#include <concepts>

namespace mori_ep::reduce {

//! @brief A reduction says whether the routing weights are applied in the combine.
template <class R>
concept ReducePolicy = requires {
  { R::kWeighted } -> std::convertible_to<bool>;
  { R::kName } -> std::convertible_to<const char*>;
};

//! @brief y[t] = sum of the rows, one per distinct rank: the expert side has weighted and summed its own experts
//! (MORI).
struct Sum {
  static constexpr const char* kName = "sum";
  static constexpr bool kWeighted = false;
};

//! @brief y[t] = sum of weight * row, where a rank's weight is the sum of the token's weights over its experts there.
//!
//! Right when a rank's row is the plain output of its one expert for the token (or of experts that agree); where
//! several local experts differ, weight and sum them on the expert side and use Sum. Dispatch must be given weights.
struct WeightedSum {
  static constexpr const char* kName = "weighted_sum";
  static constexpr bool kWeighted = true;
};
static_assert(ReducePolicy<Sum> && ReducePolicy<WeightedSum>);

}  // namespace mori_ep::reduce
