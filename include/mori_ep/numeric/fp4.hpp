// SPDX-License-Identifier: MIT
//! @file e2m1 of the OCP (MX 1.0), two to a byte.
#pragma once

#include <cstdint>

#include "mori_ep/numeric/minifloat.hpp"

namespace mori_ep {

//! @brief Two e2m1 numbers: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; the first in the low nibble. Conversion from
//!        float rounds to nearest even and saturates; the format has no NaN, which becomes 6, as NVIDIA's conversion has it.
struct fp4x2_e2m1 {
  using Format = numeric::Minifloat<2, 1, 1, 7, 7>;  // of a nibble
  static constexpr const char* kName = "fp4_e2m1";
  static constexpr float kMax = 6;
  std::uint8_t bits = 0;

  fp4x2_e2m1() = default;
  constexpr fp4x2_e2m1(float low, float high) noexcept
      : bits(static_cast<std::uint8_t>(Format::encode(low) | (Format::encode(high) << 4))) {}
  [[nodiscard]] constexpr float low() const noexcept { return decode(bits & 0xfu); }
  [[nodiscard]] constexpr float high() const noexcept { return decode(std::uint32_t{bits} >> 4); }
  friend constexpr bool operator==(fp4x2_e2m1, fp4x2_e2m1) noexcept = default;  //!< compares bits

  static constexpr fp4x2_e2m1 from_bits(std::uint8_t b) noexcept {
    fp4x2_e2m1 r;
    r.bits = b;
    return r;
  }

 private:
  static constexpr float decode(std::uint32_t nibble) noexcept {
    return (nibble & 8u) != 0 ? -Format::decode(nibble & 7u) : Format::decode(nibble);
  }
};
static_assert(sizeof(fp4x2_e2m1) == 1);

}  // namespace mori_ep
