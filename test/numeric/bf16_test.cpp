// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>

#include "mori_ep/numeric/bf16.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

static_assert(bf16(1.0f).bits == 0x3f80 && static_cast<float>(bf16::from_bits(0xc000)) == -2.0f);
static_assert(bf16(0x1.01p0f).bits == 0x3f80 && bf16(0x1.03p0f).bits == 0x3f82, "ties go to even");

TEST_CASE("every bf16 code decodes as the format says and encodes to itself") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    auto const value = static_cast<float>(bf16::from_bits(static_cast<std::uint16_t>(bits)));
    double const expected = oracle::decode_slowly(oracle::Format::bf16, bits);
    if (std::isnan(expected)) {
      std::uint16_t const again = bf16(value).bits;
      wrong +=
          std::isnan(value) && (again & 0x7fff) > 0x7f80 && (again & 0x40) != 0 && again >> 15 == bits >> 15 ? 0 : 1;
    } else {
      wrong += value == expected && std::signbit(value) == std::signbit(expected) && bf16(value).bits == bits ? 0 : 1;
    }
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("encoding bf16 rounds to nearest even around every code") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    // The tie between this code and the next, and the floats on either side of it.
    auto const low = static_cast<float>(oracle::decode_slowly(oracle::Format::bf16, bits));
    auto const tie =
        static_cast<float>(bits == 0x7f7f ? 0x1.ffp127 : (low + oracle::decode(oracle::Format::bf16, bits + 1)) / 2);
    for (float const value :
         {low, std::nextafter(tie, 0.0f), tie, std::nextafter(tie, std::numeric_limits<float>::infinity())})
      for (float const s : {value, -value})
        wrong += bf16(s).bits == oracle::encode(oracle::Format::bf16, static_cast<double>(s)) ? 0 : 1;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("encoding random floats to bf16 agrees with double arithmetic") {
  Rng rng(1);
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    auto const bits = static_cast<std::uint32_t>(rng.next());
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isnan(value))
      wrong += bf16(value).bits == oracle::encode(oracle::Format::bf16, static_cast<double>(value)) ? 0 : 1;
  }
  REQUIRE(wrong == 0);
  REQUIRE(bf16(std::numeric_limits<float>::max()).bits == 0x7f80);
  REQUIRE(bf16(-std::numeric_limits<float>::infinity()).bits == 0xff80);
}

}  // namespace mori_ep::test
