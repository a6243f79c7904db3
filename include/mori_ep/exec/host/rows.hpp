// SPDX-License-Identifier: MIT
//! @file The row primitives on a CPU: 16-byte vectors, streaming stores where they pay, prefetch ahead of every source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "mori_ep/exec/attributes.hpp"
#include "mori_ep/numeric/element.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// A race detector sees plain stores but not streaming ones.
#if defined(__SANITIZE_THREAD__)
#define MORI_EP_PLAIN_STORES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MORI_EP_PLAIN_STORES 1
#endif
#endif

namespace mori_ep::exec::host {

// Vectors of the compiler, so that one source serves every CPU. may_alias: rows are bytes to everyone else.
using Bytes16 = std::uint8_t __attribute__((vector_size(16), may_alias));
using Word4 = std::uint32_t __attribute__((vector_size(16), may_alias));
using Half8 = std::uint16_t __attribute__((vector_size(16), may_alias));
using Float4 = float __attribute__((vector_size(16), may_alias));

//! @brief The same 16 bytes as another vector type.
template <class To, class From>
inline To as(const From& from) noexcept {
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

inline constexpr std::size_t kVectorBytes = 16;
inline constexpr std::size_t kLineBytes = 64;
// Sapphire Rapids, five sources, 2 threads: 24 GB/s without prefetch, 30 at 256 bytes ahead, 32 at 1024, 31 at 2048.
inline constexpr std::size_t kPrefetchBytes = 1024;

template <bool Streaming>
inline void store_vector(void* dst, Bytes16 v) noexcept {
#if defined(__SSE2__) && !defined(MORI_EP_PLAIN_STORES)
  if constexpr (Streaming) {
    _mm_stream_si128(static_cast<__m128i*>(dst), as<__m128i>(v));
    return;
  }
#endif
  *static_cast<Bytes16*>(dst) = v;
}

//! @brief Orders earlier streaming stores of this thread before its later stores; streaming stores obey no release.
inline void fence_streaming() noexcept {
#if defined(__SSE2__) && !defined(MORI_EP_PLAIN_STORES)
  _mm_sfence();
#endif
}

//! @brief Bytes [begin, end) of a row: part `part` of `parts`, in whole cache lines but for the row's end.
struct Span {
  std::size_t begin, end;
  static constexpr Span part(std::size_t bytes, int part, int parts) noexcept {
    std::size_t const lines = (bytes + kLineBytes - 1) / kLineBytes, n = static_cast<std::size_t>(parts);
    std::size_t const begin = lines * static_cast<std::size_t>(part) / n * kLineBytes;
    std::size_t const end = lines * (static_cast<std::size_t>(part) + 1) / n * kLineBytes;
    return {begin, end < bytes ? end : bytes};
  }
};

template <bool Streaming>
inline void multicast_row(const std::byte* src, std::byte* const* dst, int n, Span span) noexcept {
  std::size_t at = span.begin;
  std::size_t const bytes = span.end;
  // A whole cache line to each destination in turn: every write-combining buffer fills before the next is opened.
  for (; at + kLineBytes <= bytes; at += kLineBytes) {
    auto const* from = reinterpret_cast<const Bytes16*>(src + at);
    __builtin_prefetch(src + at + kPrefetchBytes);
    Bytes16 const a = from[0], b = from[1], c = from[2], d = from[3];
    for (int i = 0; i < n; ++i) {
      std::byte* to = dst[i] + at;
      store_vector<Streaming>(to, a);
      store_vector<Streaming>(to + 16, b);
      store_vector<Streaming>(to + 32, c);
      store_vector<Streaming>(to + 48, d);
    }
  }
  for (; at < bytes; at += kVectorBytes) {
    Bytes16 const a = *reinterpret_cast<const Bytes16*>(src + at);
    for (int i = 0; i < n; ++i) store_vector<Streaming>(dst[i] + at, a);
  }
}

template <bool Streaming>
inline void zero_row(std::byte* dst, Span span) noexcept {
  for (std::size_t at = span.begin; at < span.end; at += kVectorBytes) store_vector<Streaming>(dst + at, Bytes16{});
}

//! @brief Four fp32 vectors at most: what one 16-byte vector of T widens to.
template <Element T>
struct Widened {
  static constexpr int kCount = static_cast<int>(kVectorBytes / sizeof(T) / 4);
  Float4 part[kCount];
};

template <Element T>
inline Widened<T> widen(const std::byte* src) noexcept {
  Widened<T> out;
  if constexpr (std::same_as<T, float>) {
    out.part[0] = *reinterpret_cast<const Float4*>(src);
  } else {
    auto const half = *reinterpret_cast<const Half8*>(src);
    constexpr Half8 zero{};
    // Interleaving with zeros below gives the fp32 whose upper half is the element; above, the zero-extended element.
    if constexpr (std::same_as<T, bf16>) {
      out.part[0] = as<Float4>(__builtin_shufflevector(zero, half, 0, 8, 1, 9, 2, 10, 3, 11));
      out.part[1] = as<Float4>(__builtin_shufflevector(zero, half, 4, 12, 5, 13, 6, 14, 7, 15));
    } else {
      Word4 const low = as<Word4>(__builtin_shufflevector(half, zero, 0, 8, 1, 9, 2, 10, 3, 11));
      Word4 const high = as<Word4>(__builtin_shufflevector(half, zero, 4, 12, 5, 13, 6, 14, 7, 15));
      MORI_EP_UNROLL
      for (int i = 0; i < 2; ++i) {
        Word4 const bits = i == 0 ? low : high;
        Word4 const sign = (bits & 0x8000u) << 16;
        Word4 const magnitude = (bits & 0x7fffu) << 13;
        Word4 const scaled = as<Word4>(as<Float4>(magnitude) * 0x1p112f);
        Word4 const special = as<Word4>(magnitude >= 0x0f800000u);
        out.part[i] = as<Float4>(sign | (special & (magnitude | 0x70000000u)) | (~special & scaled));
      }
    }
  }
  return out;
}

template <Element T>
inline Bytes16 narrow(const Widened<T>& in) noexcept {
  if constexpr (std::same_as<T, float>) {
    return as<Bytes16>(in.part[0]);
  } else if constexpr (std::same_as<T, bf16>) {
    Word4 rounded[2];
    MORI_EP_UNROLL
    for (int i = 0; i < 2; ++i) {
      Word4 const u = as<Word4>(in.part[i]);
      Word4 const nan = as<Word4>((u & 0x7fffffffu) > 0x7f800000u);
      Word4 const nearest = u + 0x7fffu + ((u >> 16) & 1u);
      rounded[i] = (nan & (u | 0x400000u)) | (~nan & nearest);
    }
    return as<Bytes16>(
        __builtin_shufflevector(as<Half8>(rounded[0]), as<Half8>(rounded[1]), 1, 3, 5, 7, 9, 11, 13, 15));
  } else {
    Word4 half[2];
    MORI_EP_UNROLL
    for (int i = 0; i < 2; ++i) {
      Word4 const u = as<Word4>(in.part[i]);
      Word4 const a = u & 0x7fffffffu;
      Word4 const normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
      Word4 const denormal = as<Word4>(as<Float4>(a) + 0.5f) - 0x3f000000u;
      Word4 const nan = 0x7e00u | ((a >> 13) & 0x1ffu);
      Word4 const is_nan = as<Word4>(a > 0x7f800000u);
      Word4 const is_large = as<Word4>(a >= 0x477ff000u);
      Word4 const is_small = as<Word4>(a < 0x38800000u);
      Word4 const finite = (is_small & denormal) | (~is_small & normal);
      half[i] = ((u >> 16) & 0x8000u) | (is_nan & nan) | (~is_nan & is_large & 0x7c00u) | (~is_large & finite);
    }
    return as<Bytes16>(__builtin_shufflevector(as<Half8>(half[0]), as<Half8>(half[1]), 0, 2, 4, 6, 8, 10, 12, 14));
  }
}

//! @brief The product rounded to fp32: kept apart from the sum so that no compiler fuses them and all machines agree.
inline Float4 rounded_product(Float4 a, Float4 b) noexcept {
  Float4 product = a * b;
#if defined(__SSE2__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
}

//! @brief One source's vectors [at, at + Vectors * 16), widened and, if asked, weighted.
template <Element T, bool Weighted, int Vectors>
struct Terms {
  static constexpr int kParts = Vectors * Widened<T>::kCount;
  Float4 part[kParts];

  Terms(const std::byte* src, const float* weight) noexcept {
    if constexpr (Vectors > 1) __builtin_prefetch(src + kPrefetchBytes);
    MORI_EP_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      auto const wide = widen<T>(src + static_cast<std::size_t>(v) * kVectorBytes);
      MORI_EP_UNROLL
      for (int p = 0; p < Widened<T>::kCount; ++p) {
        Float4 term = wide.part[p];
        if constexpr (Weighted) term = rounded_product(term, Float4{} + *weight);
        part[v * Widened<T>::kCount + p] = term;
      }
    }
  }
  void add(const Terms& other) noexcept {
    MORI_EP_UNROLL
    for (int p = 0; p < kParts; ++p) part[p] = part[p] + other.part[p];
  }
  template <bool Streaming>
  void round_to(std::byte* dst) const noexcept {
    MORI_EP_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      Widened<T> out;
      MORI_EP_UNROLL
      for (int p = 0; p < Widened<T>::kCount; ++p) out.part[p] = part[v * Widened<T>::kCount + p];
      store_vector<Streaming>(dst + static_cast<std::size_t>(v) * kVectorBytes, narrow<T>(out));
    }
  }
};

//! @brief One step of `reduce_rows`: the vectors [at, at + Vectors * 16) of all sources into dst. `Grouped` false: all
//!        sources are one group, and half the registers hold the sum.
template <Element T, bool Weighted, bool Streaming, bool Grouped, int Vectors>
inline void reduce_step(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                        std::byte* dst, std::size_t at) noexcept {
  using Sum = Terms<T, Weighted, Vectors>;
  Sum group(srcs[0] + at, weights);
  if constexpr (Grouped) {
    bool closed = false;  // is an earlier group already in `total`?
    Sum total = group;
    for (int i = 1; i < n; ++i) {
      Sum const term(srcs[i] + at, weights + i);
      if (((group_starts >> i) & 1u) == 0) {
        group.add(term);
        continue;
      }
      if (closed)
        total.add(group);
      else
        total = group;
      closed = true;
      group = term;
    }
    if (closed) {
      total.add(group);
      group = total;
    }
  } else {
    for (int i = 1; i < n; ++i) group.add(Sum(srcs[i] + at, weights + i));
  }
  group.template round_to<Streaming>(dst + at);
}

template <Element T, bool Weighted, bool Streaming, bool Grouped>
inline void reduce_all(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                       std::byte* dst, Span span) noexcept {
  std::size_t at = span.begin;
  for (; at + kLineBytes <= span.end; at += kLineBytes)
    reduce_step<T, Weighted, Streaming, Grouped, 4>(srcs, weights, n, group_starts, dst, at);
  for (; at < span.end; at += kVectorBytes)
    reduce_step<T, Weighted, Streaming, Grouped, 1>(srcs, weights, n, group_starts, dst, at);
}

template <Element T, bool Weighted, bool Streaming>
inline void reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                        std::byte* dst, Span span) noexcept {
  if ((group_starts & ~1u) == 0)
    reduce_all<T, Weighted, Streaming, false>(srcs, weights, n, group_starts, dst, span);
  else
    reduce_all<T, Weighted, Streaming, true>(srcs, weights, n, group_starts, dst, span);
}

}  // namespace mori_ep::exec::host
