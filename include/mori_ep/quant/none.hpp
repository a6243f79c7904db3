// SPDX-License-Identifier: MIT
//! @file quant::None: rows travel as the caller has them.
#pragma once

#include <type_traits>

#include "mori_ep/quant/policy.hpp"

namespace mori_ep::quant {

//! @brief Rows travel unchanged, both ways; T is bf16, fp16 or float.
template <class T>
struct None : Forms<std::conditional_t<Element<T>, T, float>, std::conditional_t<Element<T>, T, float>> {
  static_assert(Element<T>,
                "quant::None<T>: T must be mori_ep::bf16, mori_ep::fp16 or float. Convert the rows or, where they are "
                "codes already, use quant::Pair<quant::Payload<T>, quant::None<mori_ep::bf16>>.");
};
static_assert(HasPlainCombine<None<bf16>> && HasPlainCombine<None<fp16>> && HasPlainCombine<None<float>>);

}  // namespace mori_ep::quant
