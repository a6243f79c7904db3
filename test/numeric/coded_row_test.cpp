// SPDX-License-Identifier: MIT
// Where codes and scales lie, what scales are made, and what the bounds say; the loops that make rows: code_loops_test.
#include "mori_ep/numeric/coded_row.hpp"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

namespace {

using Fp8 = CodedRow<bf16, fp8_e4m3, 128>;
using Fp4 = CodedRow<bf16, fp4x2_e2m1, 32, e8m0>;
using Cast = CodedRow<bf16, fp8_e4m3, 0>;

static_assert(Fp8::payload_bytes(7168) == 7168 && Fp8::scale_bytes(7168) == 224 && Fp8::row_bytes(7168) == 7392);
static_assert(Fp8::scales(144) == 2 && Fp8::row_bytes(144) == 160);  // a last block of 16; rounded to 16 bytes
static_assert(Fp4::payload_bytes(7168) == 3584 && Fp4::scale_bytes(7168) == 224 && Fp4::kUnit == 32);
static_assert(Cast::scales(7168) == 0 && Cast::row_bytes(7168) == 7168);
static_assert(row_bytes_of<bf16>(8) == 16 && payload_bytes_of<Fp8>(128) == 128);
static_assert(CodedRowType<Fp8> && !CodedRowType<bf16> && RowForm<bf16> && !RowForm<fp8_e4m3>);

constexpr std::uint32_t bits(float v) { return std::bit_cast<std::uint32_t>(v); }

static_assert(Fp8::scale_of(bits(448.0f)) == 448.0f * (1.0f / 448.0f));
static_assert(Fp8::scale_of(0) == 0x1p-126f && Fp8::factor_of(0x1p-126f) == 0x1p126f);
static_assert(Fp4::scale_of(bits(6.0f)).bits == 127 && Fp4::scale_of(bits(6.1f)).bits == 128);
static_assert(Fp4::scale_of(bits(0.0f)).bits == 1 && Fp4::factor_of(e8m0::from_bits(1)) == 0x1p126f);

}  // namespace

TEST_CASE("scales: no block saturates, every scale and factor is a normal number") {
  Rng rng(7);
  auto const check = [](float largest) {
    INFO(largest);
    float const scale = Fp8::scale_of(bits(largest)), factor = Fp8::factor_of(scale);
    REQUIRE((std::isnormal(scale) && std::isnormal(factor)));
    REQUIRE(largest * factor <= 448.0f * (1 + 0x1p-21f));
    e8m0 const power = Fp4::scale_of(bits(largest));
    REQUIRE((power.bits >= 1 && power.bits <= 254 && std::isnormal(Fp4::factor_of(power))));
    REQUIRE(largest * Fp4::factor_of(power) <= 6.0f);
    if (largest > 0x1p-115f) {
      REQUIRE(largest * factor >= 448.0f * (1 - 0x1p-21f));
      REQUIRE(largest * Fp4::factor_of(power) > 3.0f);
    }
  };
  for (float v : {0.0f, 0x1p-149f, 0x1p-126f, 1.0f, 448.0f, std::numeric_limits<float>::max()}) check(v);
  for (int i = 0; i < 100000; ++i) {
    float const v = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next()) & 0x7fffffffu);
    if (std::isfinite(v)) check(v);
  }
}

TEST_CASE("a block with an infinity or a NaN has a scale that is NaN") {
  for (std::uint32_t largest : {0x7f800000u, 0x7f800001u, 0x7fffffffu}) {
    REQUIRE(std::isnan(Fp8::scale_of(largest)));
    REQUIRE(Fp4::scale_of(largest).bits == 0xff);
    REQUIRE(std::isnan(Fp4::factor_of(Fp4::scale_of(largest))));
  }
}

TEST_CASE("bounds: half of the largest step, more for powers of two, and what saturates") {
  REQUIRE(std::abs(Fp8::error_bound(448) - 16) < 0.01);
  REQUIRE(std::abs(CodedRow<bf16, fp8_e4m3, 128, e8m0>::error_bound(448) - 28) < 0.01);
  REQUIRE(std::abs(CodedRow<bf16, fp4x2_e2m1, 32>::error_bound(6) - 1) < 0.01);
  REQUIRE(std::abs(Cast::error_bound(1) - 1.0 / 16) < 0.001);
  REQUIRE(std::abs(Cast::error_bound(1000) - 552) < 0.01);
  REQUIRE(std::abs(Cast::error_bound(0) - 0x1p-10) < 1e-6);
  // Sums: the errors of the contributions, and one rounding.
  REQUIRE(Fp8::error_bound(448, 4) > 4 * Fp8::error_bound(448));
  REQUIRE(Fp8::error_bound(448, 4) < 4 * Fp8::error_bound(448) + 0x1.04p-8 * 4 * (448 + 17));
  REQUIRE(Fp8::error_bound(448, 4, 2) > Fp8::error_bound(448, 4) + 0x1p-8 * 4 * 448);
  // Sums that are coded again: half a step of codes whose scale is made for the sum.
  double const again = Fp8::error_bound(448, 4, 2, true) - Fp8::error_bound(448, 4, 2);
  REQUIRE((again > Fp8::error_bound(4 * 448) && again < 1.1 * Fp8::error_bound(4 * (448 + 17))));
}

}  // namespace mori_ep::test
