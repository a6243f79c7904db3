// SPDX-License-Identifier: MIT
//! @file Formats of a byte and less by their definitions, in double: what the library's must agree with.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace mori_ep::test {

//! @brief A format's non-negative numbers by code, and how a value becomes one of them.
struct SmallFloat {
  int exponent_bits, mantissa_bits, bias, largest;  // the code of the largest number

  [[nodiscard]] double value(int code) const {
    int const exponent = code >> mantissa_bits, fraction = code & ((1 << mantissa_bits) - 1);
    if (exponent == 0) return std::ldexp(fraction, 1 - bias - mantissa_bits);
    return std::ldexp((1 << mantissa_bits) + fraction, exponent - bias - mantissa_bits);
  }
  //! @brief The code nearest to `magnitude`, of two as near the even one; the largest for what is larger.
  [[nodiscard]] int nearest(double magnitude) const {
    if (magnitude >= value(largest)) return largest;
    int best = 0;
    for (int code = 1; code <= largest; ++code) {
      double const now = std::abs(value(code) - magnitude), before = std::abs(value(best) - magnitude);
      if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return best;
  }
  //! @brief Every number, every value half way between neighbours, the floats beside these, and what is too large.
  [[nodiscard]] std::vector<float> boundaries() const {
    std::vector<float> all;
    auto const add = [&all](double exact) {
      auto const v = static_cast<float>(exact);
      float const beside[] = {v, std::nextafter(v, 0.0f), std::nextafter(v, std::numeric_limits<float>::infinity())};
      for (float const f : beside) all.insert(all.end(), {f, -f});
    };
    for (int code = 0; code <= largest; ++code) {
      add(value(code));
      add((value(code) + value(code + 1)) / 2);
    }
    add(2 * value(largest));
    add(std::numeric_limits<float>::max());
    add(std::numeric_limits<float>::denorm_min());
    add(std::numeric_limits<float>::infinity());
    return all;
  }
};

}  // namespace mori_ep::test
