// SPDX-License-Identifier: MIT
#include "mori_ep/numeric/fp4.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"
#include "support/small_float.hpp"

namespace mori_ep::test {

static_assert(fp4x2_e2m1(0.5f, -6.0f).bits == 0xf1 && fp4x2_e2m1::from_bits(0x2d).low() == -3.0f);

namespace {
constexpr SmallFloat kE2m1{2, 1, 1, 7};
}

TEST_CASE("every pair of e2m1 decodes as the format says, the first in the low nibble, and encodes to itself") {
  int wrong = 0;
  for (int bits = 0; bits < 256; ++bits) {
    auto const pair = fp4x2_e2m1::from_bits(static_cast<std::uint8_t>(bits));
    auto const is = [&](float value, int nibble) {
      return value == ((nibble & 8) != 0 ? -1 : 1) * kE2m1.value(nibble & 7) &&
             std::signbit(value) == ((nibble & 8) != 0);
    };
    wrong +=
        is(pair.low(), bits & 15) && is(pair.high(), bits >> 4) && fp4x2_e2m1(pair.low(), pair.high()) == pair ? 0 : 1;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("encoding e2m1 rounds to nearest even around every code, and saturates") {
  int wrong = 0;
  for (float const value : kE2m1.boundaries()) {
    int const code = kE2m1.nearest(std::abs(static_cast<double>(value))) | (std::signbit(value) ? 8 : 0);
    wrong += fp4x2_e2m1(value, 1.0f).bits == (code | 0x20) && fp4x2_e2m1(1.0f, value).bits == (code << 4 | 2) ? 0 : 1;
  }
  REQUIRE(wrong == 0);
  float const nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(fp4x2_e2m1(nan, -nan).bits == 0x77);
  CHECK(fp4x2_e2m1::kMax == 6);
}

}  // namespace mori_ep::test
