// SPDX-License-Identifier: MIT
//! @file bfloat16: 8 exponent bits, 7 mantissa bits; the upper half of an fp32.
#pragma once

#include <bit>
#include <cstdint>

namespace mori_ep {

//! @brief bfloat16 storage. Conversion from float rounds to nearest even; NaN stays NaN (quiet), infinities stay.
struct bf16 {
  static constexpr const char* kName = "bf16";
  std::uint16_t bits = 0;

  bf16() = default;
  constexpr explicit bf16(float value) noexcept : bits(encode(value)) {}
  constexpr explicit operator float() const noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
  friend constexpr bool operator==(bf16,
                                   bf16) noexcept = default;  //!< compares bits: NaN equals itself, +0 and -0 differ

  static constexpr bf16 from_bits(std::uint16_t b) noexcept {
    bf16 r;
    r.bits = b;
    return r;
  }

 private:
  static constexpr std::uint16_t encode(float value) noexcept {
    auto const u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};
static_assert(sizeof(bf16) == 2);

}  // namespace mori_ep
