// SPDX-License-Identifier: MIT
#include "mori_ep/numeric/fp8.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "support/catch.hpp"
#include "support/random.hpp"
#include "support/small_float.hpp"

namespace mori_ep::test {

static_assert(fp8_e4m3(448.0f).bits == 0x7e && fp8_e4m3(464.0f).bits == 0x7e && fp8_e4m3(-1e30f).bits == 0xfe);
static_assert(fp8_e4m3(1.0f).bits == 0x38 && static_cast<float>(fp8_e4m3::from_bits(0x01)) == 0x1p-9f);
static_assert(fp8_e4m3_fnuz(240.0f).bits == 0x7f && fp8_e4m3_fnuz(1.0f).bits == 0x40 && fp8_e4m3_fnuz(-0.0f).bits == 0);
static_assert(fp8_e5m2(57344.0f).bits == 0x7b && fp8_e5m2(1.0f).bits == 0x3c && fp8_e5m2(-0.0f).bits == 0x80);

namespace {

constexpr SmallFloat kE4m3{4, 3, 7, 0x7e}, kFnuz{4, 3, 8, 0x7f}, kE5m2{5, 2, 15, 0x7b};

//! The code that `value`, which is no NaN, must have.
template <class T>
int expected(const SmallFloat& format, float value) {
  int const code = format.nearest(std::abs(static_cast<double>(value)));
  bool const negative = std::signbit(value) && !(std::is_same_v<T, fp8_e4m3_fnuz> && code == 0);
  return code | (negative ? 0x80 : 0);
}

template <class T>
void check(const SmallFloat& format) {
  int wrong = 0;
  for (int bits = 0; bits < 256; ++bits) {
    auto const value = static_cast<float>(T::from_bits(static_cast<std::uint8_t>(bits)));
    int const code = bits & 0x7f;
    bool const number = code <= format.largest && !(std::is_same_v<T, fp8_e4m3_fnuz> && bits == 0x80);
    bool const negative = bits >= 0x80;
    if (number)
      wrong +=
          value == (negative ? -1 : 1) * format.value(code) && std::signbit(value) == negative && T(value).bits == bits
              ? 0
              : 1;
    else if (std::is_same_v<T, fp8_e5m2> && code == 0x7c)  // infinity, which nothing is encoded to
      wrong += std::isinf(value) && std::signbit(value) == negative ? 0 : 1;
    else
      wrong += std::isnan(value) && std::isnan(static_cast<float>(T(value))) ? 0 : 1;
  }
  CHECK(wrong == 0);
  for (float const value : format.boundaries()) wrong += T(value).bits == expected<T>(format, value) ? 0 : 1;
  CHECK(wrong == 0);
  Rng rng(11);
  for (int i = 0; i < 100000; ++i) {
    auto const any = static_cast<std::uint32_t>(rng.next());
    float value;
    std::memcpy(&value, &any, sizeof(value));
    if (i % 2 == 0) value = std::ldexp(value, -static_cast<int>(any >> 23 & 0xff) + 127 + rng.in(-20, 20));
    if (!std::isnan(value)) wrong += T(value).bits == expected<T>(format, value) ? 0 : 1;
  }
  CHECK(wrong == 0);
  CHECK(T::kMax == format.value(format.largest));
}

}  // namespace

TEST_CASE("every code, every rounding boundary and random floats: e4m3") { check<fp8_e4m3>(kE4m3); }
TEST_CASE("every code, every rounding boundary and random floats: e4m3 FNUZ") { check<fp8_e4m3_fnuz>(kFnuz); }
TEST_CASE("every code, every rounding boundary and random floats: e5m2") { check<fp8_e5m2>(kE5m2); }

TEST_CASE("what is no number becomes the format's one NaN, whatever its sign") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  CHECK(fp8_e4m3(nan).bits == 0x7f);
  CHECK(fp8_e4m3(-nan).bits == 0x7f);
  CHECK(fp8_e4m3_fnuz(nan).bits == 0x80);
  CHECK(fp8_e4m3_fnuz(-nan).bits == 0x80);
  CHECK(fp8_e5m2(nan).bits == 0x7f);
  CHECK(fp8_e5m2(-nan).bits == 0x7f);
}

}  // namespace mori_ep::test
