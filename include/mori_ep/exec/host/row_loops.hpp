// SPDX-License-Identifier: MIT
//! @file The loops of `reduce_rows` for vectors of MORI_EP_ROW_BYTES bytes; rows.hpp includes it once for each width.
#if !defined(MORI_EP_ROW_BYTES)
#include "mori_ep/exec/host/rows.hpp"
#else

// A namespace per target: one name is one function to the linker, and must not be sometimes wide and sometimes not.
// (min_vector_width: clang would halve 64-byte vectors where -march names a CPU that it tunes so.)
#if MORI_EP_ROW_BYTES == 16
#define MORI_EP_ROW_NAMESPACE vectors16
#elif MORI_EP_ROW_BYTES == 32
#define MORI_EP_ROW_NAMESPACE vectors32
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
#endif
#else
#define MORI_EP_ROW_NAMESPACE vectors64
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw"), min_vector_width(512))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw")
#endif
#endif

namespace mori_ep::exec::host::MORI_EP_ROW_NAMESPACE {

inline constexpr std::size_t kVectorBytes = MORI_EP_ROW_BYTES;

// Vectors of the compiler, so that one source serves every CPU. may_alias: rows are bytes to everyone else.
using Bytes = std::uint8_t __attribute__((vector_size(kVectorBytes), may_alias));
using Words = std::uint32_t __attribute__((vector_size(kVectorBytes), may_alias));
using Ints = std::int32_t __attribute__((vector_size(kVectorBytes), may_alias));
using Floats = float __attribute__((vector_size(kVectorBytes), may_alias));
using HalfWords = std::uint32_t __attribute__((vector_size(kVectorBytes / 2), may_alias));

//! @brief The same bytes as another vector type.
template <class To, class From>
inline To as(const From& from) noexcept {
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

//! @brief Rows are aligned to 16 bytes, whatever the width.
template <class To>
inline To load(const std::byte* src) noexcept {
  To to;
  __builtin_memcpy(&to, src, sizeof(to));
  return to;
}

//! @brief `dst` is a multiple of the width. (vmovntdq and F16C by name: <immintrin.h> takes g++ 0.4 s to read.)
template <bool Streaming>
inline void store_vector(void* dst, Bytes v) noexcept {
#if defined(__SSE2__) && !defined(MORI_EP_PLAIN_STORES)
  if constexpr (Streaming) {
#if MORI_EP_ROW_BYTES == 16
    _mm_stream_si128(static_cast<__m128i*>(dst), as<__m128i>(v));
#else
    asm("vmovntdq %1, %0" : "=m"(*static_cast<Bytes*>(dst)) : "x"(v));
#endif
    return;
  }
#endif
  *static_cast<Bytes*>(dst) = v;
}

//! @brief One vector of T in fp32: of 16-bit elements the even and the odd ones, or the lower and the upper half.
template <Element T>
struct Widened {
  static constexpr int kCount = static_cast<int>(sizeof(float) / sizeof(T));
  Floats part[kCount];
};

template <Element T>
inline Widened<T> widen(const std::byte* src) noexcept {
  Widened<T> out;
  if constexpr (std::same_as<T, float>) {
    out.part[0] = load<Floats>(src);
  } else if constexpr (std::same_as<T, bf16>) {
    Words const pair = load<Words>(src);
    out.part[0] = as<Floats>(pair << 16);
    out.part[1] = as<Floats>(pair & 0xffff0000u);
  } else {
#if MORI_EP_ROW_BYTES > 16
    MORI_EP_UNROLL
    for (int i = 0; i < 2; ++i) {
      Floats wide;
      asm("vcvtph2ps %1, %0" : "=x"(wide) : "x"(load<HalfWords>(src + i * (kVectorBytes / 2))));
      out.part[i] = wide;
    }
#else
    Words const pair = load<Words>(src);
    MORI_EP_UNROLL
    for (int i = 0; i < 2; ++i) {
      Words const bits = i == 0 ? pair << 16 : pair;
      Words const sign = bits & 0x80000000u;
      Words const magnitude = (bits >> 3) & 0x0fffe000u;
      Words const scaled = as<Words>(as<Floats>(magnitude) * 0x1p112f);
      Words const special = as<Words>(as<Ints>(magnitude) > 0x0f7fffff);
      out.part[i] = as<Floats>(sign | (special & (magnitude | 0x70000000u)) | (~special & scaled));
    }
#endif
  }
  return out;
}

#if MORI_EP_ROW_BYTES > 16
template <std::size_t... I>
inline Words join(HalfWords low, HalfWords high, std::index_sequence<I...>) noexcept {
  return __builtin_shufflevector(low, high, I...);
}
#endif

template <Element T>
inline Bytes narrow(const Widened<T>& in) noexcept {
  if constexpr (std::same_as<T, float>) {
    return as<Bytes>(in.part[0]);
  } else if constexpr (std::same_as<T, bf16>) {
    Words rounded[2];
    MORI_EP_UNROLL
    for (int i = 0; i < 2; ++i) {
      Words const u = as<Words>(in.part[i]);
      Words const nan = as<Words>(as<Ints>(u & 0x7fffffffu) > 0x7f800000);
      Words const nearest = u + 0x7fffu + ((u >> 16) & 1u);
      rounded[i] = (nan & (u | 0x400000u)) | (~nan & nearest);
    }
    return as<Bytes>((rounded[0] >> 16) | (rounded[1] & 0xffff0000u));
  } else {
#if MORI_EP_ROW_BYTES > 16
    HalfWords low, high;
    asm("vcvtps2ph $0, %1, %0" : "=x"(low) : "x"(in.part[0]));
    asm("vcvtps2ph $0, %1, %0" : "=x"(high) : "x"(in.part[1]));
    return as<Bytes>(join(low, high, std::make_index_sequence<kVectorBytes / 4>{}));
#else
    Words half[2];
    MORI_EP_UNROLL
    for (int i = 0; i < 2; ++i) {
      Words const u = as<Words>(in.part[i]);
      Words const a = u & 0x7fffffffu;
      Words const normal = (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
      Words const denormal = as<Words>(as<Floats>(a) + 0.5f) - 0x3f000000u;
      Words const nan = 0x7e00u | ((a >> 13) & 0x1ffu);
      Words const is_nan = as<Words>(as<Ints>(a) > 0x7f800000);
      Words const is_large = as<Words>(as<Ints>(a) > 0x477fefff);
      Words const is_small = as<Words>(as<Ints>(a) < 0x38800000);
      Words const finite = (is_small & denormal) | (~is_small & normal);
      half[i] = ((u >> 16) & 0x8000u) | (is_nan & nan) | (~is_nan & is_large & 0x7c00u) | (~is_large & finite);
    }
    return as<Bytes>(half[0] | (half[1] << 16));
#endif
  }
}

//! @brief The product rounded to fp32: kept apart from the sum so that no compiler fuses them and all machines agree.
inline Floats rounded_product(Floats a, Floats b) noexcept {
  Floats product = a * b;
#if defined(__SSE2__)
  asm("" : "+x"(product));
#elif defined(__aarch64__)
  asm("" : "+w"(product));
#endif
  return product;
}

//! @brief One source's vectors [at, at + Vectors * width), widened and, if asked, weighted.
template <Element T, bool Weighted, int Vectors>
struct Terms {
  static constexpr int kParts = Vectors * Widened<T>::kCount;
  Floats part[kParts];

  Terms(const std::byte* src, const float* weight) noexcept {
    MORI_EP_UNROLL
    for (int v = 0; v < Vectors; ++v) {
      const std::byte* const from = src + static_cast<std::size_t>(v) * kVectorBytes;
      if constexpr (Vectors * kVectorBytes >= kLineBytes)
        if (static_cast<std::size_t>(v) * kVectorBytes % kLineBytes == 0) __builtin_prefetch(from + kPrefetchBytes);
      auto const wide = widen<T>(from);
      MORI_EP_UNROLL
      for (int p = 0; p < Widened<T>::kCount; ++p) {
        Floats term = wide.part[p];
        if constexpr (Weighted) term = rounded_product(term, Floats{} + *weight);
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

//! @brief The sum of `load(i)` for i below n, group by group, the sums of the groups then. `Grouped` false: all are one
//!        group, and half the registers hold the sum.
template <class Sum, bool Grouped, class Load>
inline Sum sum_of(int n, std::uint32_t group_starts, Load const& load) noexcept {
  Sum group = load(0);
  if constexpr (Grouped) {
    bool closed = false;  // is an earlier group already in `total`?
    Sum total = group;
    for (int i = 1; i < n; ++i) {
      Sum const term = load(i);
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
    for (int i = 1; i < n; ++i) group.add(load(i));
  }
  return group;
}

//! @brief One step of `reduce_rows`: the vectors [at, at + Vectors * width) of all sources into dst.
template <Element T, bool Weighted, bool Streaming, bool Grouped, int Vectors>
inline void reduce_step(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                        std::byte* dst, std::size_t at) noexcept {
  using Sum = Terms<T, Weighted, Vectors>;
  sum_of<Sum, Grouped>(n, group_starts, [&](int i) {
    return Sum(srcs[i] + at, Weighted ? weights + i : nullptr);
  }).template round_to<Streaming>(dst + at);
}

template <Element T, bool Weighted, bool Streaming, bool Grouped>
inline void reduce_all(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                       std::byte* dst, Span span) noexcept {
  constexpr bool kNarrow = kVectorBytes == 16;
  std::size_t at = span.begin;
  if constexpr (!kNarrow) {
    // Wide stores need their own alignment: up to there, and for what is no whole line, 16 bytes at a time.
    std::size_t const off = (-reinterpret_cast<std::uintptr_t>(dst + at)) % kVectorBytes;
    if (off != 0 && off < span.end - at) {
      vectors16::reduce_all<T, Weighted, Streaming, Grouped>(srcs, weights, n, group_starts, dst, {at, at + off});
      at += off;
    }
  }
  // Two sums at least: fp32 in 64-byte vectors is 5 % slower with one.
  constexpr std::size_t kStep = kVectorBytes == 64 && Widened<T>::kCount == 1 ? 2 * kLineBytes : kLineBytes;
  for (; at + kStep <= span.end; at += kStep)
    reduce_step<T, Weighted, Streaming, Grouped, static_cast<int>(kStep / kVectorBytes)>(srcs, weights, n, group_starts,
                                                                                         dst, at);
  if constexpr (kNarrow)
    for (; at < span.end; at += kVectorBytes)
      reduce_step<T, Weighted, Streaming, Grouped, 1>(srcs, weights, n, group_starts, dst, at);
  else if (at < span.end)
    vectors16::reduce_all<T, Weighted, Streaming, Grouped>(srcs, weights, n, group_starts, dst, {at, span.end});
}

template <Element T, bool Weighted, bool Streaming>
inline void reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                        std::byte* dst, Span span) noexcept {
  if ((group_starts & ~1u) == 0)
    reduce_all<T, Weighted, Streaming, false>(srcs, weights, n, group_starts, dst, span);
  else
    reduce_all<T, Weighted, Streaming, true>(srcs, weights, n, group_starts, dst, span);
}

#if MORI_EP_ROW_BYTES == 16
//! @brief A sum that keeps its fp32, as `Widened` has it: for each 16 bytes of T the parts one behind the other.
template <Element T, bool Weighted>
inline void sum_rows(const std::byte* const* srcs, const float* weights, int n, std::byte* dst, Span span) noexcept {
  for (std::size_t at = span.begin; at < span.end; at += kVectorBytes) {
    Terms<T, Weighted, 1> sum(srcs[0] + at, weights);
    for (int i = 1; i < n; ++i) sum.add(Terms<T, Weighted, 1>(srcs[i] + at, Weighted ? weights + i : nullptr));
    MORI_EP_UNROLL
    for (int p = 0; p < Widened<T>::kCount; ++p)
      store_vector<false>(dst + (at * Widened<T>::kCount + static_cast<std::size_t>(p) * kVectorBytes),
                          as<Bytes>(sum.part[p]));
  }
}
//! @brief The sum of such sums, rounded to T. `span` is of dst.
template <Element T>
inline void round_rows(const std::byte* const* srcs, int n, std::byte* dst, Span span) noexcept {
  for (std::size_t at = span.begin; at < span.end; at += kVectorBytes) {
    Widened<T> sum;
    MORI_EP_UNROLL
    for (int p = 0; p < Widened<T>::kCount; ++p) {
      std::size_t const from = at * Widened<T>::kCount + static_cast<std::size_t>(p) * kVectorBytes;
      sum.part[p] = load<Floats>(srcs[0] + from);
      for (int i = 1; i < n; ++i) sum.part[p] = sum.part[p] + load<Floats>(srcs[i] + from);
    }
    store_vector<false>(dst + at, narrow<T>(sum));
  }
}
#endif

// Coded rows have no loops of 64 bytes: those of 32 serve every CPU that has these.
#if MORI_EP_ROW_BYTES <= 32
#include "mori_ep/exec/host/code_loops.hpp"
#endif

}  // namespace mori_ep::exec::host::MORI_EP_ROW_NAMESPACE

#if MORI_EP_ROW_BYTES > 16 && defined(__clang__)
#pragma clang attribute pop
#elif MORI_EP_ROW_BYTES > 16
#pragma GCC pop_options
#endif
#undef MORI_EP_ROW_NAMESPACE
#undef MORI_EP_ROW_BYTES

#endif
