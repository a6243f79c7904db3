// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>

#include "mori_ep/numeric/fp16.hpp"
#include "support/catch.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

static_assert(fp16(1.0f).bits == 0x3c00 && static_cast<float>(fp16::from_bits(0xc000)) == -2.0f);
static_assert(fp16(65519.0f).bits == 0x7bff && fp16(65520.0f).bits == 0x7c00);
static_assert(fp16(0x1p-24f).bits == 1 && fp16(0x1p-25f).bits == 0 && fp16(0x1.8p-24f).bits == 2);

TEST_CASE("every fp16 code decodes as the format says and encodes to itself") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    auto const value = static_cast<float>(fp16::from_bits(static_cast<std::uint16_t>(bits)));
    double const expected = oracle::decode_slowly(oracle::Format::fp16, bits);
    if (std::isnan(expected)) {
      std::uint16_t const again = fp16(value).bits;
      wrong +=
          std::isnan(value) && (again & 0x7fff) > 0x7c00 && (again & 0x200) != 0 && again >> 15 == bits >> 15 ? 0 : 1;
    } else {
      wrong += value == expected && std::signbit(value) == std::signbit(expected) && fp16(value).bits == bits ? 0 : 1;
    }
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("encoding fp16 rounds to nearest even around every code") {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    auto const low = static_cast<float>(oracle::decode_slowly(oracle::Format::fp16, bits));
    auto const tie =
        bits == 0x7bff
            ? 65520.0f
            : static_cast<float>((static_cast<double>(low) + oracle::decode(oracle::Format::fp16, bits + 1)) / 2);
    for (float const value :
         {low, std::nextafter(tie, 0.0f), tie, std::nextafter(tie, std::numeric_limits<float>::infinity())})
      for (float const s : {value, -value})
        wrong += fp16(s).bits == oracle::encode(oracle::Format::fp16, static_cast<double>(s)) ? 0 : 1;
  }
  REQUIRE(wrong == 0);
}

TEST_CASE("encoding random floats to fp16 agrees with double arithmetic") {
  Rng rng(2);
  int wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    // Half of them anywhere, half where halves and their denormals are.
    auto bits = static_cast<std::uint32_t>(rng.next());
    if (i % 2 == 0) bits = (bits & 0x807fffffu) | static_cast<std::uint32_t>(rng.in(127 - 27, 127 + 17)) << 23;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    if (!std::isnan(value))
      wrong += fp16(value).bits == oracle::encode(oracle::Format::fp16, static_cast<double>(value)) ? 0 : 1;
  }
  REQUIRE(wrong == 0);
  REQUIRE(fp16(std::numeric_limits<float>::infinity()).bits == 0x7c00);
  REQUIRE(fp16(-std::numeric_limits<float>::max()).bits == 0xfc00);
}

}  // namespace mori_ep::test
