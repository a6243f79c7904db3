// SPDX-License-Identifier: MIT
//! @file A row of numbers as codes of a byte or less, with a scale for each block of them or with none.
#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "mori_ep/numeric/e8m0.hpp"
#include "mori_ep/numeric/element.hpp"
#include "mori_ep/numeric/fp4.hpp"
#include "mori_ep/numeric/fp8.hpp"
#include "mori_ep/numeric/minifloat.hpp"

namespace mori_ep {

//! @brief What an element may be coded as.
template <class C>
concept Code = std::same_as<C, fp8_e4m3> || std::same_as<C, fp8_e4m3_fnuz> || std::same_as<C, fp8_e5m2> ||
    std::same_as<C, fp4x2_e2m1>;
//! @brief What the scale of a block may be stored as.
template <class S>
concept BlockScale = std::same_as<S, float> || std::same_as<S, e8m0>;

namespace numeric {

//! @brief How many elements a code holds, and the errors of coding: `kTopStep` is the distance of the two largest
//!        numbers, `kSmallest` the smallest one above zero.
template <Code C>
struct CodeTraits {
  static constexpr int kElements = std::same_as<C, fp4x2_e2m1> ? 2 : 1;
  static constexpr float kTopStep = C::Format::decode(C::Format::kLargest) - C::Format::decode(C::Format::kLargest - 1);
  static constexpr float kSmallest = C::Format::decode(1);
};

//! @brief The largest error of one rounding to T, relative to the result.
template <Element T>
inline constexpr double kRounding = std::same_as<T, bf16>   ? 0x1p-8
                                    : std::same_as<T, fp16> ? 0x1p-11
                                                            : 0x1p-24;
//! @brief The largest number of T.
template <Element T>
inline constexpr double kLargest = std::same_as<T, bf16>   ? 0x1.fep127
                                   : std::same_as<T, fp16> ? 65504.0
                                                           : 0x1.fffffep127;

}  // namespace numeric

//! @brief H elements of T as codes C, then their scales; Block elements share a scale S, the last block may be shorter.
//!        Block 0: no scales, each element is cast.
//!
//! Codes     round(element / scale), to nearest even; the scale is the block's largest magnitude over the largest number
//!           of C, so that every block uses all of C's range. An e8m0 scale is the next power of two. A cast saturates.
//! Zeros     stay, with their sign, where C has -0. Elements far below their block's largest become zeros.
//! Small     A scale is not less than 2^-126: blocks of nothing larger than 2^-126 times C's largest number lose bits, or
//!           become zeros.
//! Large     An element that is within C's rounding of T's largest number may come out as infinity, with e8m0 scales.
//! Not       finite: an infinity or NaN makes every element of its block NaN (its scale is NaN); a cast makes that
//!           element NaN, where C has NaN.
//! Bytes     row_bytes(H): payload_bytes(H) of codes, then scale_bytes(H), a multiple of 16 in all. H must be a multiple
//!           of kUnit, the elements in 16 bytes of codes.
//! Source    OCP MX 1.0 (e8m0 blocks; here nothing saturates); DeepSeek-V3 (fp32 scale for each 128).
template <Element T, Code C, int Block, BlockScale S = float>
struct CodedRow {
  using ElementType = T;
  using CodeType = C;
  using ScaleType = S;
  using Traits = numeric::CodeTraits<C>;

  static constexpr int kUnit = 16 * Traits::kElements;
  static constexpr int kBlock = Block;
  static constexpr bool kScaled = Block != 0;
  static_assert(Block == 0 || (Block >= kUnit && Block <= 512 && std::has_single_bit(unsigned(Block))),
                "CodedRow: a block is a power of two, of 16 to 512 elements, 32 to 512 as fp4. Use 128.");
  static_assert(Block != 0 || !std::same_as<C, fp4x2_e2m1>,
                "CodedRow: fp4 without a scale has eight magnitudes and no NaN. Give it blocks, of 32.");

  [[nodiscard]] static constexpr std::size_t payload_bytes(std::size_t hidden) noexcept {
    return hidden / static_cast<std::size_t>(Traits::kElements);
  }
  [[nodiscard]] static constexpr std::size_t scales(std::size_t hidden) noexcept {
    return kScaled ? (hidden + static_cast<std::size_t>(Block) - 1) / static_cast<std::size_t>(kScaled ? Block : 1) : 0;
  }
  [[nodiscard]] static constexpr std::size_t scale_bytes(std::size_t hidden) noexcept {
    return scales(hidden) * sizeof(S);
  }
  [[nodiscard]] static constexpr std::size_t row_bytes(std::size_t hidden) noexcept {
    return (payload_bytes(hidden) + scale_bytes(hidden) + 15) / 16 * 16;
  }

  //! @brief The scale of a block whose largest magnitude has these bits as an fp32; those of a NaN are the largest.
  [[nodiscard]] static constexpr S scale_of(std::uint32_t largest) noexcept {
    if constexpr (std::same_as<S, e8m0>) {
      if (largest >= kInfinity) return e8m0::from_bits(0xff);
      auto const above =
          static_cast<std::int32_t>(largest) - static_cast<std::int32_t>(numeric::float_bits(C::kMax)) + 0x7fffff;
      std::int32_t const code = (above >> 23) + 127;
      return e8m0::from_bits(static_cast<std::uint8_t>(code < 1 ? 1 : code));
    } else {
      if (largest >= kInfinity) return numeric::quiet_nan(false);
      // No reference to a constant of the class: on a device it would have no address.
      constexpr float kLeast = 0x1p-126f;
      float const magnitude = std::bit_cast<float>(largest),
                  scale = (magnitude < kLeast ? kLeast : magnitude) * (1.0f / C::kMax);
      return kLeast < scale ? scale : kLeast;
    }
  }
  //! @brief What elements are multiplied with before they are rounded: one over the scale.
  [[nodiscard]] static constexpr float factor_of(S scale) noexcept {
    if constexpr (std::same_as<S, e8m0>) {
      if (scale.bits == 0xff) return numeric::quiet_nan(false);
      return std::bit_cast<float>((254u - scale.bits) << 23);
    } else {
      return 1.0f / scale;
    }
  }

  //! @brief How far a block's element may be from what comes out, where `largest` is the largest magnitude of its block:
  //!        half a step at the top of C's range, and what fp32 adds. A cast's block is the element. Infinite where the
  //!        element may come out as infinity.
  [[nodiscard]] static constexpr double error_bound(double largest) noexcept {
    constexpr double kSlack = 1 + 0x1p-16;  // fp32: scale, factor, and a product on either side
    if constexpr (kScaled) {
      // A power of two may be all but twice as large as it need be, and then the top is just above half of the range.
      constexpr double kShare = std::same_as<S, e8m0> ? half_step() : Traits::kTopStep / 2.0 / C::kMax;
      double const least = C::kMax * 0x1p-126, bound = (largest > least ? largest : least) * kShare * kSlack;
      return std::same_as<S, e8m0> && largest + bound > numeric::kLargest<T> ? kUnbounded : bound;
    } else {
      double const rounded = largest * half_step(), smallest = Traits::kSmallest / 2.0,
                   beyond = largest - static_cast<double>(C::kMax);
      double const bound = rounded > smallest ? rounded : smallest;
      return (bound > beyond ? bound : beyond) * kSlack;
    }
  }
  //! @brief How far a combined element may be from the exact sum of `contributions` elements, each of a block whose
  //!        largest magnitude is at most `largest` and times a weight of at most `weight`: the errors of coding, of fp32
  //!        sums, and of `roundings` to T. One, and two with InterNodeV1, which rounds the sums of nodes, too; and codes
  //!        them, unless they are casts or exact: `codes_sums`.
  [[nodiscard]] static constexpr double error_bound(double largest, int contributions, int roundings = 1,
                                                    bool codes_sums = false, double weight = 1) noexcept {
    double const n = contributions, each = error_bound(largest);
    if (each == kUnbounded) return kUnbounded;  // whatever the weight
    double const coded = n * weight * each, sum = n * weight * largest + coded;
    // Of each sum of a node: its share of `sum`, but at least what a block of small ones loses.
    double const again = codes_sums ? (1 + 0x1p-6) * error_bound(sum) + n * error_bound(0.0) : 0;
    return coded + again + n * (sum + again) * 0x1p-23 +
           roundings * (1 + 0x1p-7) * ((sum + again) * numeric::kRounding<T> + n * 0x1p-24) +
           (sum + again > numeric::kLargest<T> ? kUnbounded : 0.0);  // it may round to infinity
  }

 private:
  static constexpr std::uint32_t kInfinity = 0x7f800000u;
  static constexpr double kUnbounded = std::numeric_limits<double>::infinity();
  static constexpr double half_step() noexcept { return 0.5 / static_cast<double>(1 << C::Format::kMantissa); }
};

//! @brief Is R a CodedRow?
template <class R>
concept CodedRowType = requires {
  typename R::ElementType;
  typename R::CodeType;
  typename R::ScaleType;
  requires std::same_as<R, CodedRow<typename R::ElementType, typename R::CodeType, R::kBlock, typename R::ScaleType>>;
};
//! @brief What rows that are summed are made of: elements as they are, or coded.
template <class R>
concept RowForm = Element<R> || CodedRowType<R>;

namespace numeric {

template <class R>
struct ElementOfRow {
  using type = R;
};
template <CodedRowType R>
struct ElementOfRow<R> {
  using type = typename R::ElementType;
};

}  // namespace numeric

//! @brief The element that rows of this form are summed to.
template <RowForm R>
using RowElement = typename numeric::ElementOfRow<R>::type;

//! @brief The bytes of a row of H elements in this form.
template <RowForm R>
[[nodiscard]] constexpr std::size_t row_bytes_of(std::size_t hidden) noexcept {
  if constexpr (Element<R>)
    return hidden * sizeof(R);
  else
    return R::row_bytes(hidden);
}

//! @brief Those without the scales.
template <RowForm R>
[[nodiscard]] constexpr std::size_t payload_bytes_of(std::size_t hidden) noexcept {
  if constexpr (Element<R>)
    return hidden * sizeof(R);
  else
    return R::payload_bytes(hidden);
}

}  // namespace mori_ep
