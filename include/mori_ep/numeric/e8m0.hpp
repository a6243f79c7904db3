// SPDX-License-Identifier: MIT
//! @file e8m0 of the OCP (MX 1.0): scales that are powers of two.
#pragma once

#include <bit>
#include <cstdint>

#include "mori_ep/numeric/minifloat.hpp"

namespace mori_ep {

//! @brief 2^(bits - 127), of a block's elements; 0xff is NaN. There is no zero and no sign. As an fp32 2^-127 is a
//!        denormal, which some machines take for zero.
struct e8m0 {
  static constexpr const char* kName = "e8m0";
  std::uint8_t bits = 127;

  e8m0() = default;
  //! @brief The smallest power of two that is not less than `value`: what is no larger than `value` is at most 1 when it
  //!        is divided by it. 2^-127 for what is smaller, zero too; 2^127 for what is larger, infinity too; the sign is
  //!        ignored.
  [[nodiscard]] static constexpr e8m0 at_least(float value) noexcept {
    if (numeric::is_nan(value)) return from_bits(0xff);
    std::uint32_t const a = numeric::float_bits(numeric::magnitude(value));
    std::uint32_t const exponent = a >> 23, fraction = a & 0x7fffffu;
    // 2^-127 and 2^-126 enclose the larger denormals.
    std::uint32_t const code = exponent == 0 ? (fraction > 0x400000u ? 1u : 0u) : exponent + (fraction != 0 ? 1u : 0u);
    return from_bits(static_cast<std::uint8_t>(code < 0xfe ? code : 0xfe));
  }
  constexpr explicit operator float() const noexcept {
    if (bits == 0xff) return numeric::quiet_nan(false);
    return std::bit_cast<float>(bits == 0 ? 0x400000u : std::uint32_t{bits} << 23);
  }
  friend constexpr bool operator==(e8m0, e8m0) noexcept = default;  //!< compares bits

  static constexpr e8m0 from_bits(std::uint8_t b) noexcept {
    e8m0 r;
    r.bits = b;
    return r;
  }
};
static_assert(sizeof(e8m0) == 1);

}  // namespace mori_ep
