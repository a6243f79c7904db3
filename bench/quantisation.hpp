// SPDX-License-Identifier: MIT
//! @file The wire formats that can be measured: from a name to a type, and between elements and what travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "element_types.hpp"
#include "mori_ep/quant/coded.hpp"
#include "problem.hpp"

namespace ep_bench {

//! @brief Names of --quant, the first for rows as they are. All but that go with bf16 and --schedule intranode.
inline const std::vector<std::string> kQuants = {"none",          "fp8-cast",     "fp8-blockwise",
                                                 "fp4-blockwise", "fp8-dispatch", "fp8-carried"};

//! @brief Calls `f` with a null pointer to the format.
template <class F>
auto with_quant(const Config& config, F&& f) {
  using namespace mori_ep;
  std::string_view const name = config.quant;
  if (name == "fp8-cast") return f(static_cast<quant::Fp8DirectCast<>*>(nullptr));
  if (name == "fp8-blockwise") return f(static_cast<quant::Fp8Blockwise<128>*>(nullptr));
  if (name == "fp4-blockwise") return f(static_cast<quant::Fp4Blockwise<32>*>(nullptr));
  if (name == "fp8-dispatch") return f(static_cast<quant::Pair<quant::Fp8Blockwise<128>, quant::None<bf16>>*>(nullptr));
  if (name == "fp8-carried") return f(static_cast<quant::Pair<quant::Payload<fp8_e4m3>, quant::None<bf16>>*>(nullptr));
  return with_element_type(config.dtype, [&]<class T>(T) { return f(static_cast<quant::None<T>*>(nullptr)); });
}

//! @brief What a format does to rows of T = Out, the element that payload is made of and sums are checked in.
template <class Quant>
struct Coding {
  using Dispatch = typename Quant::Dispatch;
  using Combine = typename Quant::Combine;
  using Input = mori_ep::quant::InputUnit<Dispatch>;
  using Token = mori_ep::quant::ReceivedUnit<Dispatch>;
  using T = mori_ep::RowElement<Combine>;
  static constexpr bool kCarries = mori_ep::Code<Input>;  // codes of the caller's, with a scale for each kCarriedBlock
  static constexpr bool kCodes = mori_ep::quant::CodesDispatch<Quant>;
  static constexpr bool kPlainDispatch = !kCarries && !kCodes;
  static constexpr std::size_t kCarriedBlock = 128;

  [[nodiscard]] static std::size_t carried_scales(std::size_t hidden) {
    return kCarries ? (hidden + kCarriedBlock - 1) / kCarriedBlock : 0;
  }
  //! @brief Of a received row, with its scales.
  [[nodiscard]] static std::size_t received_bytes(std::size_t hidden) {
    std::size_t scales = carried_scales(hidden) * sizeof(float);
    if constexpr (kCodes) scales = Dispatch::scale_bytes(hidden);
    return mori_ep::quant::received_row_bytes<Quant>(hidden) + scales;
  }
  [[nodiscard]] static std::size_t combined_bytes(std::size_t hidden) {
    return mori_ep::quant::combine_row_bytes<Quant>(hidden);
  }

  //! @brief Of a token's block that the caller codes: unlike its neighbours', so that one that went astray shows.
  [[nodiscard]] static float carried_scale(std::size_t token, std::size_t block) {
    constexpr float kScales[] = {0.5f, 1.0f, 0.25f, 2.0f, 0.125f};
    return kScales[(token * 3 + block) % 5];
  }
  //! @brief The caller's row for dispatch; `scales` where it brings codes.
  static void to_input(const T* row, std::size_t token, std::size_t hidden, Input* out, float* scales) {
    for (std::size_t b = 0; b < carried_scales(hidden); ++b) scales[b] = carried_scale(token, b);
    for (std::size_t h = 0; h < hidden; ++h) {
      if constexpr (kCarries)
        out[h] = Input(static_cast<float>(row[h]) / carried_scale(token, h / kCarriedBlock));
      else
        out[h] = row[h];
    }
  }
  //! @brief A received row as elements again.
  static void to_elements(const Token* row, const std::byte* scales, std::size_t hidden, T* out) {
    for (std::size_t h = 0; h < hidden; ++h) {
      if constexpr (kCodes) {
        typename Dispatch::ScaleType scale;
        std::memcpy(&scale, scales + h / static_cast<std::size_t>(Dispatch::kBlock) * sizeof(scale), sizeof(scale));
        out[h] = T(static_cast<float>(row[h]) * static_cast<float>(scale));
      } else if constexpr (kCarries) {
        float scale;
        std::memcpy(&scale, scales + h / kCarriedBlock * sizeof(scale), sizeof(scale));
        out[h] = T(static_cast<float>(row[h]) * scale);
      } else {
        out[h] = row[h];
      }
    }
  }
  //! @brief How far an element may be off once it is received, where the payload's are at most `largest`; 0: not at all.
  [[nodiscard]] static double dispatch_error(double largest) {
    double const rounded = largest * mori_ep::numeric::kRounding<T>;
    if constexpr (kCodes)
      return Dispatch::error_bound(largest) + rounded;
    else if constexpr (kCarries)
      return mori_ep::CodedRow<T, Input, 0>::error_bound(largest) + rounded;
    else
      return 0;
  }
  //! @brief What coding adds to the error of a row that combine sums, whose elements are at most `largest`.
  [[nodiscard]] static double combine_error(double largest) {
    if constexpr (mori_ep::CodedRowType<Combine>)
      return Combine::error_bound(largest);
    else
      return 0;
  }
};

}  // namespace ep_bench
