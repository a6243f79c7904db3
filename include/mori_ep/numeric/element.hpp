// SPDX-License-Identifier: MIT
//! @file Which types a token row may be made of.
#pragma once

#include <concepts>

#include "mori_ep/numeric/bf16.hpp"
#include "mori_ep/numeric/fp16.hpp"

namespace mori_ep {

//! @brief An element that combine can add: it converts to fp32 exactly and back with one rounding.
template <class T>
concept Element = std::same_as<T, bf16> || std::same_as<T, fp16> || std::same_as<T, float>;

//! @brief The element's name in tables, traces and tuning files.
template <Element T>
constexpr const char* element_name() noexcept {
  if constexpr (std::same_as<T, float>)
    return "fp32";
  else
    return T::kName;
}

}  // namespace mori_ep
