// SPDX-License-Identifier: MIT
//! @file What floating-point formats of a byte and less have in common.
#pragma once

#include <bit>
#include <cstdint>

namespace mori_ep::numeric {

[[nodiscard]] constexpr std::uint32_t float_bits(float value) noexcept { return std::bit_cast<std::uint32_t>(value); }
[[nodiscard]] constexpr bool is_nan(float value) noexcept { return (float_bits(value) & 0x7fffffffu) > 0x7f800000u; }
[[nodiscard]] constexpr bool is_negative(float value) noexcept { return float_bits(value) >> 31 != 0; }
[[nodiscard]] constexpr float magnitude(float value) noexcept {
  return std::bit_cast<float>(float_bits(value) & 0x7fffffffu);
}
[[nodiscard]] constexpr float quiet_nan(bool negative) noexcept {
  return std::bit_cast<float>(0x7fc00000u | std::uint32_t{negative} << 31);
}

//! @brief A format of one sign bit, `Exponent` and `Mantissa` bits, in the low bits of a byte; `Largest` is the code of the
//!        largest number, `Nan` that which a NaN becomes.
//!
//! What codes beyond the largest number mean is the format's own. Encoding rounds to nearest even and saturates: what is
//! larger than the largest number, infinity too, becomes that number. No fp32 denormal is made on the way, so that a
//! machine that takes these for zero gives the same.
template <int Exponent, int Mantissa, int Bias, std::uint32_t Largest, std::uint32_t Nan>
struct Minifloat {
  static constexpr int kMantissa = Mantissa, kBias = Bias;
  static constexpr int kShift = 23 - Mantissa;  // to an fp32's mantissa
  static constexpr std::uint32_t kSign = 1u << (Exponent + Mantissa), kLargest = Largest, kNan = Nan;
  static constexpr std::uint32_t kSmallestNormal = std::uint32_t{128 - Bias} << 23;  // as an fp32's bits

  //! @brief The magnitude `code` as an fp32; exact. `code` has no sign and is a number.
  static constexpr float decode(std::uint32_t code) noexcept {
    if (code >> Mantissa == 0)
      return static_cast<float>(code) * std::bit_cast<float>(std::uint32_t{128 - Bias - Mantissa} << 23);
    return std::bit_cast<float>((code << kShift) + (std::uint32_t{127 - Bias} << 23));
  }
  //! @brief The code of a magnitude that is a number or infinite.
  static constexpr std::uint32_t encode_magnitude(float value) noexcept {
    std::uint32_t const a = float_bits(value);
    std::uint32_t code = 0;
    if (a < kSmallestNormal) {
      // What is added puts the last denormal bit at the float's last bit, so the adder rounds.
      constexpr std::uint32_t kAdded = std::uint32_t{128 - Bias + kShift} << 23;
      code = float_bits(value + std::bit_cast<float>(kAdded)) - kAdded;
    } else {
      std::uint32_t const rebased = a - (std::uint32_t{127 - Bias} << 23);
      code = (rebased + ((1u << (kShift - 1)) - 1) + ((rebased >> kShift) & 1u)) >> kShift;
    }
    return code < Largest ? code : Largest;
  }
  //! @brief The code of any fp32, with its sign.
  static constexpr std::uint8_t encode(float value) noexcept {
    if (is_nan(value)) return static_cast<std::uint8_t>(Nan);
    return static_cast<std::uint8_t>((is_negative(value) ? kSign : 0u) | encode_magnitude(magnitude(value)));
  }
};

}  // namespace mori_ep::numeric
