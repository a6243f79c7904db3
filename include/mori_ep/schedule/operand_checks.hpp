// SPDX-License-Identifier: MIT
//! @file What a call's operands must look like, said in the same words for all of them.
#pragma once

#include <cstdint>

#include "mori_ep/error.hpp"
#include "mori_ep/exec/tensor_view.hpp"

namespace mori_ep::schedule {

//! @brief Checks of one rank's operands; errors carry its number.
struct OperandChecks {
  int rank = 0;

  [[nodiscard]] Error bad(const char* field, std::int64_t value, std::int64_t limit, const char* hint) const noexcept {
    return {.code = Errc::invalid_argument, .rank = rank, .field = field, .value = value, .limit = limit, .hint = hint};
  }

  //! Shape, leading dimension and alignment of one operand; `align` in bytes.
  template <class V>
  [[nodiscard]] Status shaped(const TensorView<V>& view, const char* rows_field, const char* cols_field,
                              const char* memory_field, std::int64_t rows, std::int64_t cols,
                              std::int64_t align) const noexcept {
    if (view.rows != rows) return bad(rows_field, view.rows, rows, "It must have as many rows as the limit says.");
    if (rows == 0) return {};
    if (view.cols != cols) return bad(cols_field, view.cols, cols, "It must have as many columns as the limit says.");
    if (view.data == nullptr) return bad(memory_field, 0, align, "A view with rows needs memory: its pointer is null.");
    return aligned(view, cols, memory_field, align);
  }
  template <class V>
  [[nodiscard]] Status aligned(const TensorView<V>& view, std::int64_t cols, const char* memory_field,
                               std::int64_t align) const noexcept {
    if (view.ld < cols)
      return bad(memory_field, view.ld * static_cast<std::int64_t>(sizeof(V)),
                 cols * static_cast<std::int64_t>(sizeof(V)), "The leading dimension must be at least the columns.");
    auto const address = reinterpret_cast<std::uintptr_t>(view.data);
    if (address % static_cast<std::uintptr_t>(align) != 0)
      return bad(
          memory_field, static_cast<std::int64_t>(address % static_cast<std::uintptr_t>(align)), align,
          "Rows must start at multiples of the limit in bytes, and the address lies as many after one: align the "
          "memory.");
    if (view.ld * static_cast<std::int64_t>(sizeof(V)) % align != 0)
      return bad(memory_field, view.ld * static_cast<std::int64_t>(sizeof(V)), align,
                 "Rows must start at multiples of the limit in bytes: change the leading dimension.");
    return {};
  }
};

}  // namespace mori_ep::schedule
