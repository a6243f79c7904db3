// SPDX-License-Identifier: MIT
//! @file What a row looks like on the wire. quant::None: as the caller has it.
#pragma once

#include <concepts>
#include <cstddef>

#include "mori_ep/numeric/element.hpp"

namespace mori_ep::quant {

//! @brief A wire format names the element types at the caller's side and the bytes that a row of H elements takes.
template <class Q>
concept QuantPolicy = requires {
  typename Q::DispatchElement;
  typename Q::CombineElement;
  { Q::kName } -> std::convertible_to<const char*>;
  { Q::wire_bytes(std::size_t{1}) } -> std::same_as<std::size_t>;
};

//! @brief A format whose combine rows can be summed as they lie in the registered buffer.
template <class Q>
concept HasPlainCombine = QuantPolicy<Q> && Element<typename Q::CombineElement>;

//! @brief Rows travel unchanged; T is bf16, fp16 or float.
template <class T>
struct None {
  static_assert(Element<T>,
                "quant::None<T>: T must be mori_ep::bf16, mori_ep::fp16 or float. Convert the rows, or choose a "
                "quantising policy.");
  using DispatchElement = T;
  using CombineElement = T;
  static constexpr const char* kName = element_name<T>();
  static constexpr std::size_t wire_bytes(std::size_t hidden) noexcept { return hidden * sizeof(T); }
};
static_assert(HasPlainCombine<None<bf16>> && HasPlainCombine<None<fp16>> && HasPlainCombine<None<float>>);

}  // namespace mori_ep::quant
