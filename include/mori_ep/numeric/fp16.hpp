// SPDX-License-Identifier: MIT
//! @file IEEE binary16: 5 exponent bits, 10 mantissa bits.
#pragma once

#include <bit>
#include <cstdint>

namespace mori_ep {

//! @brief IEEE half storage. Conversion from float rounds to nearest even, keeps denormals, overflows to infinity.
struct fp16 {
  static constexpr const char* kName = "fp16";
  std::uint16_t bits = 0;

  fp16() = default;
  constexpr explicit fp16(float value) noexcept : bits(encode(value)) {}
  constexpr explicit operator float() const noexcept { return decode(bits); }
  friend constexpr bool operator==(fp16, fp16) noexcept = default;  //!< compares bits

  static constexpr fp16 from_bits(std::uint16_t b) noexcept {
    fp16 r;
    r.bits = b;
    return r;
  }

 private:
  // The exponent is rebased by a multiplication with 2^112, which also normalises denormals exactly.
  static constexpr float decode(std::uint16_t b) noexcept {
    std::uint32_t const sign = (std::uint32_t{b} & 0x8000u) << 16;
    std::uint32_t const magnitude = (std::uint32_t{b} & 0x7fffu) << 13;
    if (magnitude >= 0x0f800000u) return std::bit_cast<float>(sign | 0x70000000u | magnitude);
    float const scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(scaled));
  }

  static constexpr std::uint16_t encode(float value) noexcept {
    auto const u = std::bit_cast<std::uint32_t>(value);
    auto const sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
    std::uint32_t const a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x1ffu));
    if (a >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // 65520 and above round to infinity
    if (a < 0x38800000u) {
      // Below 2^-14: adding 0.5 puts the half's last denormal bit at the float's last bit, so the adder rounds.
      float const rounded = std::bit_cast<float>(a) + 0.5f;
      return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u));
    }
    std::uint32_t const rebased = a - 0x38000000u;
    return static_cast<std::uint16_t>(sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13));
  }
};
static_assert(sizeof(fp16) == 2);

}  // namespace mori_ep
