// SPDX-License-Identifier: MIT
#include "mori_ep/numeric/e8m0.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

#include "support/catch.hpp"

namespace mori_ep::test {

static_assert(e8m0::at_least(1.0f).bits == 127 && e8m0::at_least(1.5f).bits == 128);
static_assert(static_cast<float>(e8m0()) == 1.0f);

TEST_CASE("every e8m0 is its power of two, the least of itself, and the next one's of what is a little more") {
  float const infinity = std::numeric_limits<float>::infinity();
  int wrong = 0;
  for (int bits = 0; bits < 255; ++bits) {
    auto const scale = e8m0::from_bits(static_cast<std::uint8_t>(bits));
    auto const value = static_cast<float>(scale);
    int const next = bits < 254 ? bits + 1 : 254;
    wrong += static_cast<double>(value) == std::ldexp(1.0, bits - 127) && e8m0::at_least(value) == scale &&
                     e8m0::at_least(-value) == scale && e8m0::at_least(std::nextafter(value, 0.0f)) == scale &&
                     e8m0::at_least(std::nextafter(value, infinity)).bits == next
                 ? 0
                 : 1;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("e8m0 of zero, of what is too large, and of no number") {
  CHECK(e8m0::at_least(0.0f).bits == 0);
  CHECK(e8m0::at_least(std::numeric_limits<float>::max()).bits == 254);
  CHECK(e8m0::at_least(std::numeric_limits<float>::infinity()).bits == 254);
  CHECK(e8m0::at_least(std::numeric_limits<float>::quiet_NaN()).bits == 255);
  CHECK(std::isnan(static_cast<float>(e8m0::from_bits(255))));
}

}  // namespace mori_ep::test
