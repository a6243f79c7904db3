// SPDX-License-Identifier: MIT
//! @file From the name of an element type to the type.
#pragma once

#include <string_view>

#include "mori_ep/numeric/element.hpp"

namespace ep_bench {

//! @brief Calls `f` with a value of the named type: bf16, fp16 or fp32.
template <class F>
auto with_element_type(std::string_view name, F&& f) {
  if (name == "bf16") return f(mori_ep::bf16());
  if (name == "fp16") return f(mori_ep::fp16());
  return f(float());
}

}  // namespace ep_bench
