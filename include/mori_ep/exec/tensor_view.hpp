// SPDX-License-Identifier: MIT
//! @file A typed view of caller-owned rows.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

namespace mori_ep {

//! @brief [rows, cols] elements of T; row i starts at `data + i * ld`. Owns nothing.
template <class T>
struct TensorView {
  T* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ld = 0;  //!< elements from one row to the next, at least `cols`

  constexpr TensorView() = default;
  constexpr TensorView(T* d, std::int64_t r, std::int64_t c) noexcept : data(d), rows(r), cols(c), ld(c) {}
  constexpr TensorView(T* d, std::int64_t r, std::int64_t c, std::int64_t l) noexcept
      : data(d), rows(r), cols(c), ld(l) {}
  //! @brief A view of mutable elements is a view of constant ones.
  template <class U>
  requires(!std::same_as<U, T> && std::same_as<const U, T>) constexpr TensorView(
      const TensorView<U>& other) noexcept  // NOLINT: adding const loses nothing
      : data(other.data), rows(other.rows), cols(other.cols), ld(other.ld) {}

  [[nodiscard]] constexpr T* row(std::int64_t i) const noexcept { return data + i * ld; }
  [[nodiscard]] constexpr bool empty() const noexcept { return data == nullptr; }
};

}  // namespace mori_ep
