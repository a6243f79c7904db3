// SPDX-License-Identifier: MIT
//! @file quant::None: rows travel as the caller has them.
#pragma once

#include "mori_ep/quant/policy.hpp"

namespace mori_ep::quant {

//! @brief Rows travel unchanged, both ways; T is bf16, fp16 or float.
template <class T>
struct None : Forms<T, T> {
  static_assert(Element<T>,
                "quant::None<T>: T must be mori_ep::bf16, mori_ep::fp16 or float. Convert the rows, or choose a "
                "quantising policy.");
};
static_assert(HasPlainCombine<None<bf16>> && HasPlainCombine<None<fp16>> && HasPlainCombine<None<float>>);

}  // namespace mori_ep::quant
