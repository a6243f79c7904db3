// SPDX-License-Identifier: MIT
//! @file The row primitives on a GPU: a warp moves a row in 16-byte vectors, several in flight per lane.
#pragma once

#include "mori_ep/exec/gpu/target.hpp"

#if defined(MORI_EP_GPU)

#include <cstddef>
#include <cstdint>

#include "mori_ep/numeric/element.hpp"

namespace mori_ep::exec::gpu {

//! @brief fp32 lanes of one 16-byte vector of T.
template <Element T>
inline constexpr int kVectorElements = static_cast<int>(16 / sizeof(T));

template <Element T>
__device__ inline void widen(const Vec16& v, float (&out)[kVectorElements<T>]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::same_as<T, float>) {
      out[i] = __builtin_bit_cast(float, v.word[i]);
    } else if constexpr (std::same_as<T, bf16>) {
      out[2 * i] = __builtin_bit_cast(float, v.word[i] << 16);
      out[2 * i + 1] = __builtin_bit_cast(float, v.word[i] & 0xffff0000u);
    } else {
      out[2 * i] = static_cast<float>(fp16::from_bits(static_cast<std::uint16_t>(v.word[i])));
      out[2 * i + 1] = static_cast<float>(fp16::from_bits(static_cast<std::uint16_t>(v.word[i] >> 16)));
    }
  }
}

template <Element T>
__device__ inline Vec16 narrow(const float (&in)[kVectorElements<T>]) {
  Vec16 v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (std::same_as<T, float>)
      v.word[i] = __builtin_bit_cast(std::uint32_t, in[i]);
    else
      v.word[i] = std::uint32_t{T(in[2 * i]).bits} | (std::uint32_t{T(in[2 * i + 1]).bits} << 16);
  }
  return v;
}

//! @brief Bytes of a row are counted in 32 bits: rows are far shorter than 4 GiB, and a register is saved per address.
using RowBytes = std::uint32_t;

//! @brief Lane `lane` of `lanes` moves every `lanes`-th vector; kInFlight of them are loaded before the first is stored.
__device__ inline void multicast_row(const std::byte* src, std::byte* const* dst, int n, RowBytes bytes, int lane,
                                     int lanes) {
  constexpr RowBytes kInFlight = 7;  // 7 x 512 bytes divide a row of 7168 bf16
  auto const step = static_cast<RowBytes>(lanes) * 16;
  RowBytes at = static_cast<RowBytes>(lane) * 16;
  for (; at + (kInFlight - 1) * step < bytes; at += kInFlight * step) {
    Vec16 v[kInFlight];
#pragma unroll
    for (RowBytes i = 0; i < kInFlight; ++i) v[i] = Target::load_row(src + at + i * step);
    for (int d = 0; d < n; ++d) {
      std::byte* to = dst[d] + at;
#pragma unroll
      for (RowBytes i = 0; i < kInFlight; ++i) Target::store_row(to + i * step, v[i]);
    }
  }
  if (at >= bytes) return;
  Vec16 v[kInFlight];
#pragma unroll
  for (RowBytes i = 0; i < kInFlight; ++i)
    if (at + i * step < bytes) v[i] = Target::load_row(src + at + i * step);
  for (int d = 0; d < n; ++d) {
    std::byte* to = dst[d] + at;
#pragma unroll
    for (RowBytes i = 0; i < kInFlight; ++i)
      if (at + i * step < bytes) Target::store_row(to + i * step, v[i]);
  }
}

//! @brief One source's 16 bytes, widened and, if asked, weighted.
template <Element T, bool Weighted>
__device__ inline void term_of(const Vec16& v, float weight, float (&term)[kVectorElements<T>]) {
  widen<T>(v, term);
  if constexpr (Weighted) {
#pragma unroll
    for (int e = 0; e < kVectorElements<T>; ++e) term[e] = Target::product(term[e], weight);
  }
}

//! @brief The sum of rows that are all one group. A call of its own: its loop needs the registers that its caller does
//!        not need meanwhile. kAtOnce sources are loaded before the first is added: the loads are
//!        what takes time.
template <Element T, bool Weighted>
__device__ __noinline__ void reduce_group(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                                          RowBytes bytes, int lane, int lanes) {
  constexpr int kAtOnce = 8, kElements = kVectorElements<T>;
  for (RowBytes at = static_cast<RowBytes>(lane) * 16; at < bytes; at += static_cast<RowBytes>(lanes) * 16) {
    float sum[kElements], term[kElements];
    for (int first = 0; first < n; first += kAtOnce) {
      Vec16 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i < n) v[i] = Target::load_row(srcs[first + i] + at);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= n) break;
        term_of<T, Weighted>(v[i], Weighted ? weights[first + i] : 1.0f, term);
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] = i == 0 && first == 0 ? term[e] : sum[e] + term[e];
      }
    }
    Target::store_row(dst + at, narrow<T>(sum));
  }
}

//! @brief The sum of groups, each summed by itself first: for worlds that are grouped into nodes.
template <Element T, bool Weighted>
__device__ __noinline__ void reduce_groups(const std::byte* const* srcs, const float* weights, int n,
                                           std::uint32_t group_starts, std::byte* dst, RowBytes bytes, int lane,
                                           int lanes) {
  constexpr int kElements = kVectorElements<T>;
  for (RowBytes at = static_cast<RowBytes>(lane) * 16; at < bytes; at += static_cast<RowBytes>(lanes) * 16) {
    float group[kElements], total[kElements], term[kElements];
    bool closed = false;  // is an earlier group already in `total`?
    term_of<T, Weighted>(Target::load_row(srcs[0] + at), Weighted ? weights[0] : 1.0f, group);
    for (int i = 1; i < n; ++i) {
      term_of<T, Weighted>(Target::load_row(srcs[i] + at), Weighted ? weights[i] : 1.0f, term);
      bool const opens = ((group_starts >> i) & 1u) != 0;
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        if (opens) total[e] = closed ? total[e] + group[e] : group[e];
        group[e] = opens ? term[e] : group[e] + term[e];
      }
      closed |= opens;
    }
    if (closed) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) group[e] = total[e] + group[e];
    }
    Target::store_row(dst + at, narrow<T>(group));
  }
}

template <Element T, bool Weighted>
__device__ inline void reduce_rows(const std::byte* const* srcs, const float* weights, int n,
                                   std::uint32_t group_starts, std::byte* dst, RowBytes bytes, int lane, int lanes) {
  if ((group_starts & ~1u) == 0)
    reduce_group<T, Weighted>(srcs, weights, n, dst, bytes, lane, lanes);
  else
    reduce_groups<T, Weighted>(srcs, weights, n, group_starts, dst, bytes, lane, lanes);
}

}  // namespace mori_ep::exec::gpu

#endif
