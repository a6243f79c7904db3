// SPDX-License-Identifier: MIT
//! @file The three 8-bit formats: e4m3 and e5m2 of the OCP (OFP8 1.0), e4m3 FNUZ of AMD's CDNA3.
#pragma once

#include <bit>
#include <cstdint>

#include "mori_ep/numeric/minifloat.hpp"

namespace mori_ep {

//! @brief e4m3 of the OCP: largest 448, no infinity, NaN 0x7f and 0xff. Conversion from float rounds to nearest even and
//!        saturates; any NaN becomes 0x7f, as NVIDIA's conversion has it.
struct fp8_e4m3 {
  using Format = numeric::Minifloat<4, 3, 7, 0x7e, 0x7f>;
  static constexpr const char* kName = "fp8_e4m3";
  static constexpr float kMax = 448;
  std::uint8_t bits = 0;

  fp8_e4m3() = default;
  constexpr explicit fp8_e4m3(float value) noexcept : bits(Format::encode(value)) {}
  constexpr explicit operator float() const noexcept {
    std::uint32_t const code = bits & 0x7fu;
    if (code == 0x7f) return numeric::quiet_nan(bits >> 7 != 0);
    return bits >> 7 != 0 ? -Format::decode(code) : Format::decode(code);
  }
  friend constexpr bool operator==(fp8_e4m3, fp8_e4m3) noexcept = default;  //!< compares bits

  static constexpr fp8_e4m3 from_bits(std::uint8_t b) noexcept {
    fp8_e4m3 r;
    r.bits = b;
    return r;
  }
};

//! @brief e4m3 FNUZ: largest 240, no infinity, no negative zero, one NaN (0x80). Otherwise as fp8_e4m3.
struct fp8_e4m3_fnuz {
  using Format = numeric::Minifloat<4, 3, 8, 0x7f, 0x80>;
  static constexpr const char* kName = "fp8_e4m3_fnuz";
  static constexpr float kMax = 240;
  std::uint8_t bits = 0;

  fp8_e4m3_fnuz() = default;
  constexpr explicit fp8_e4m3_fnuz(float value) noexcept : bits(Format::encode(value)) {
    if (bits == 0x80 && !numeric::is_nan(value)) bits = 0;  // what would be a negative zero
  }
  constexpr explicit operator float() const noexcept {
    if (bits == 0x80) return numeric::quiet_nan(false);
    return bits >> 7 != 0 ? -Format::decode(bits & 0x7fu) : Format::decode(bits);
  }
  friend constexpr bool operator==(fp8_e4m3_fnuz, fp8_e4m3_fnuz) noexcept = default;  //!< compares bits

  static constexpr fp8_e4m3_fnuz from_bits(std::uint8_t b) noexcept {
    fp8_e4m3_fnuz r;
    r.bits = b;
    return r;
  }
};

//! @brief e5m2 of the OCP: an fp16's upper byte; largest 57344. Conversion from float rounds to nearest even and
//!        saturates, infinity too; any NaN becomes 0x7f. Codes of infinity decode to it.
struct fp8_e5m2 {
  using Format = numeric::Minifloat<5, 2, 15, 0x7b, 0x7f>;
  static constexpr const char* kName = "fp8_e5m2";
  static constexpr float kMax = 57344;
  std::uint8_t bits = 0;

  fp8_e5m2() = default;
  constexpr explicit fp8_e5m2(float value) noexcept : bits(Format::encode(value)) {}
  constexpr explicit operator float() const noexcept {
    std::uint32_t const code = bits & 0x7fu;
    bool const negative = bits >> 7 != 0;
    if (code > 0x7c) return numeric::quiet_nan(negative);
    float const value = code == 0x7c ? std::bit_cast<float>(0x7f800000u) : Format::decode(code);
    return negative ? -value : value;
  }
  friend constexpr bool operator==(fp8_e5m2, fp8_e5m2) noexcept = default;  //!< compares bits

  static constexpr fp8_e5m2 from_bits(std::uint8_t b) noexcept {
    fp8_e5m2 r;
    r.bits = b;
    return r;
  }
};
static_assert(sizeof(fp8_e4m3) == 1 && sizeof(fp8_e4m3_fnuz) == 1 && sizeof(fp8_e5m2) == 1);

}  // namespace mori_ep
