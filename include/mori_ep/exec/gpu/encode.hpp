// SPDX-License-Identifier: MIT
//! @file A row that is coded on its way: a lane codes 16 elements at a time, neighbouring lanes share a block's scale.
#pragma once

#include "mori_ep/exec/gpu/codes.hpp"

#if defined(MORI_EP_GPU)

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/exec/gpu/rows.hpp"

namespace mori_ep::exec::gpu {

//! @brief Elements from `first` on, a multiple of kPieceElements, of a row of T.
template <Element T>
__device__ __forceinline__ void load_elements(const std::byte* src, RowBytes first,
                                              Vec16 (&into)[kPieceElements / kVectorElements<T>]) {
#pragma unroll
  for (int i = 0; i < kPieceElements / kVectorElements<T>; ++i)
    into[i] = Target::load_row_piece(src + first * static_cast<RowBytes>(sizeof(T)) + i * 16);
}

__device__ inline void store_scale(std::byte* scales, RowBytes block, float scale) {
  Target::store(reinterpret_cast<float*>(scales) + block, scale);
}
__device__ inline void store_scale(std::byte* scales, RowBytes block, e8m0 scale) {
  Target::store(reinterpret_cast<std::uint8_t*>(scales) + block, scale.bits);
}

//! @brief The piece of which this lane has the elements: its codes to every destination, its block's scale, too, if it
//!        is the block's first. Called by all lanes of a warp; `there`: has this lane a piece?
template <CodedRowType R>
__device__ __forceinline__ void encode_piece(const Vec16 (&v)[kPieceElements / kVectorElements<RowElement<R>>],
                                             bool there, RowBytes first, std::byte* const* payloads,
                                             std::byte* const* scales, int n) {
  using T = RowElement<R>;
  using C = typename R::CodeType;
  constexpr int kEach = kVectorElements<T>, kBytes = kPieceBytes<C>, kWords = kBytes / 4;
  float x[kPieceElements];
#pragma unroll
  for (int i = 0; i < kPieceElements / kEach; ++i) {
    float part[kEach];
    widen<T>(v[i], part);
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[i * kEach + e] = part[e];
  }
  typename R::ScaleType scale{};
  if constexpr (R::kScaled) {
    std::uint32_t largest = 0;
#pragma unroll
    for (int e = 0; e < kPieceElements; ++e) {
      std::uint32_t const bits = numeric::float_bits(x[e]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    if (!there) largest = 0;
#pragma unroll
    for (int mask = 1; mask < R::kBlock / kPieceElements; mask *= 2) {
      std::uint32_t const other = Target::from_lane_xor(largest, mask);
      largest = other > largest ? other : largest;
    }
    scale = R::scale_of(largest);
    float factor;
    if constexpr (sizeof(scale) == 4)
      factor = Target::reciprocal(scale);
    else
      factor = R::factor_of(scale);
#pragma unroll
    for (int e = 0; e < kPieceElements; ++e) x[e] = Target::product(x[e], factor);
  }
  if (!there) return;
  std::conditional_t<kBytes == 16, Vec16, Vec8> codes;
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    if constexpr (R::kScaled)
      codes.word[w] = encode_word<C>(x + w * (kPieceElements / kWords));
    else
      codes.word[w] = cast_word<C>(x + w * (kPieceElements / kWords));
  }
  auto const at = first / static_cast<RowBytes>(R::Traits::kElements);
#pragma unroll 1
  for (int d = 0; d < n; ++d) {
    Target::store_row(payloads[d] + at, codes);
    if constexpr (R::kScaled)
      if (first % R::kBlock == 0) store_scale(scales[d], first / R::kBlock, scale);
  }
}

//! @brief Part `part` of `parts` of a row, coded once and written to each destination. `place` as multicast_row has it.
template <CodedRowType R, class Place>
__device__ __forceinline__ void encode_row(const std::byte* src, std::byte* const* payloads, std::byte* const* scales,
                                           Place&& place, RowBytes elements, int part, int parts) {
  using T = RowElement<R>;
  constexpr int kVectors = kPieceElements / kVectorElements<T>;
  constexpr RowBytes kWarp = Target::lanes * kPieceElements;
  auto const mine = static_cast<RowBytes>(Target::lane() * kPieceElements);
  RowBytes const step = static_cast<RowBytes>(parts) * kWarp;
  RowBytes at = static_cast<RowBytes>(part) * kWarp;
  Vec16 v[kVectors] = {}, next[kVectors] = {};
  if (at + mine < elements) load_elements<T>(src, at + mine, v);
  int const n = place();
#pragma unroll 1
  while (at < elements) {
    if (at + step + mine < elements) load_elements<T>(src, at + step + mine, next);
    encode_piece<R>(v, at + mine < elements, at + mine, payloads, scales, n);
    at += step;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = next[i];
  }
}

}  // namespace mori_ep::exec::gpu

#endif
