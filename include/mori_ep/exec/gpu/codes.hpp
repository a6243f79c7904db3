// SPDX-License-Identifier: MIT
//! @file Codes to fp32 and back, four bytes at a time, and how much a lane codes at once.
#pragma once

#include "mori_ep/exec/gpu/target.hpp"

#if defined(MORI_EP_GPU)

#include <cstddef>
#include <cstdint>

#include "mori_ep/numeric/coded_row.hpp"

namespace mori_ep::exec::gpu {

//! @brief What a lane codes at once: 16 bytes of fp8, 8 of fp4.
inline constexpr int kPieceElements = 16;
template <Code C>
inline constexpr int kPieceBytes = kPieceElements / numeric::CodeTraits<C>::kElements;

//! @brief Four bytes of codes as fp32. By the target's instructions where it has them for C.
template <Code C>
__device__ __forceinline__ void decode_word(std::uint32_t word, float* out) {
  if constexpr (Target::converts<C>()) {
    Target::template unpack<C>(word, out);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      C const code = C::from_bits(static_cast<std::uint8_t>(word >> (8 * i)));
      if constexpr (numeric::CodeTraits<C>::kElements == 2)
        out[2 * i] = code.low(), out[2 * i + 1] = code.high();
      else
        out[i] = static_cast<float>(code);
    }
  }
}

//! @brief The reverse, to nearest even. What is larger than C's largest number saturates; a NaN may be any code.
template <Code C>
__device__ __forceinline__ std::uint32_t encode_word(const float* in) {
  if constexpr (Target::converts<C>()) {
    return Target::template pack<C>(in);
  } else {
    std::uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      C code;
      if constexpr (numeric::CodeTraits<C>::kElements == 2)
        code = C(in[2 * i], in[2 * i + 1]);
      else
        code = C(in[i]);
      word |= std::uint32_t{code.bits} << (8 * i);
    }
    return word;
  }
}

//! @brief As encode_word, of elements that are cast: what is not finite becomes NaN.
template <Code C>
__device__ __forceinline__ std::uint32_t cast_word(const float* in) {
  std::uint32_t word = encode_word<C>(in), nan = static_cast<std::uint32_t>(C(numeric::quiet_nan(false)).bits);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if ((numeric::float_bits(in[i]) & 0x7fffffffu) >= 0x7f800000u)
      word = (word & ~(0xffu << (8 * i))) | (nan << (8 * i));
  return word;
}

//! @brief The scale of block `block`, from the four aligned bytes that hold it.
template <CodedRowType R>
__device__ __forceinline__ float scale_in(std::uint32_t word, RowBytes block) {
  if constexpr (sizeof(typename R::ScaleType) == 4)
    return __builtin_bit_cast(float, word);
  else
    return static_cast<float>(e8m0::from_bits(static_cast<std::uint8_t>(word >> (block % 4 * 8))));
}

}  // namespace mori_ep::exec::gpu

#endif
