// SPDX-License-Identifier: MIT
//! @file The row primitives on a CPU: the widest vectors that the machine has, streaming stores where they pay, prefetch
//!       ahead of every source.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "mori_ep/exec/attributes.hpp"
#include "mori_ep/numeric/coded_row.hpp"
#include "mori_ep/numeric/element.hpp"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// A sanitizer sees plain stores but not streaming ones.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MORI_EP_PLAIN_STORES 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define MORI_EP_PLAIN_STORES 1
#endif
#endif

// One program for every x86-64: wider vectors are chosen at run time. Not where a GPU's compiler reads the file too.
#if defined(__x86_64__) && !defined(__CUDACC__) && !defined(__HIP__)
#define MORI_EP_WIDE_ROWS 1
#endif

namespace mori_ep::exec::host {

inline constexpr std::size_t kLineBytes = 64;
// Sapphire Rapids, five sources, 2 threads: 24 GB/s without prefetch, 30 at 256 bytes ahead, 32 at 1024, 31 at 2048;
// with wider vectors 32 to 33 at 1024 and at 2048 alike.
inline constexpr std::size_t kPrefetchBytes = 1024;

//! @brief Orders earlier streaming stores of this thread before its later stores; streaming stores obey no release.
inline void fence_streaming() noexcept {
#if defined(__SSE2__) && !defined(MORI_EP_PLAIN_STORES)
  _mm_sfence();
#endif
}

//! @brief Bytes, or elements, [begin, end) of a row of `size`: part `part` of `parts`, in whole units, cache lines unless
//!        told otherwise, but for the row's end.
struct Span {
  std::size_t begin, end;
  static constexpr Span part(std::size_t size, int part, int parts, std::size_t unit = kLineBytes) noexcept {
    std::size_t const units = (size + unit - 1) / unit, n = static_cast<std::size_t>(parts);
    std::size_t const begin = units * static_cast<std::size_t>(part) / n * unit;
    std::size_t const end = units * (static_cast<std::size_t>(part) + 1) / n * unit;
    return {begin, end < size ? end : size};
  }
};

//! @brief What is coded at one time: a block, or as much where there are none.
template <CodedRowType R>
inline constexpr std::size_t kCodedCell = R::kScaled&& R::kBlock > 128 ? static_cast<std::size_t>(R::kBlock) : 128;

}  // namespace mori_ep::exec::host

// The loops once for each width, in the namespaces vectors16, vectors32 and vectors64.
#define MORI_EP_ROW_BYTES 16
#include "mori_ep/exec/host/row_loops.hpp"
#if defined(MORI_EP_WIDE_ROWS)
#define MORI_EP_ROW_BYTES 32
#include "mori_ep/exec/host/row_loops.hpp"
#define MORI_EP_ROW_BYTES 64
#include "mori_ep/exec/host/row_loops.hpp"
#endif

namespace mori_ep::exec::host {

//! @brief How wide the vectors of `reduce_rows` are at most. Every width gives the same bits (of two NaNs' sum: a NaN).
enum class RowVectors { bytes16, bytes32, bytes64 };

//! @brief The widest that this CPU and its operating system have.
inline RowVectors widest_row_vectors() noexcept {
#if defined(MORI_EP_WIDE_ROWS)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return RowVectors::bytes64;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return RowVectors::bytes32;
#endif
  return RowVectors::bytes16;
}

template <bool Streaming>
inline void multicast_row(const std::byte* src, std::byte* const* dst, int n, Span span) noexcept {
  std::size_t at = span.begin;
  std::size_t const bytes = span.end;
  // A whole cache line to each destination in turn: every write-combining buffer fills before the next is opened.
  for (; at + kLineBytes <= bytes; at += kLineBytes) {
    auto const* from = reinterpret_cast<const vectors16::Bytes*>(src + at);
    __builtin_prefetch(src + at + kPrefetchBytes);
    vectors16::Bytes const a = from[0], b = from[1], c = from[2], d = from[3];
    for (int i = 0; i < n; ++i) {
      std::byte* to = dst[i] + at;
      vectors16::store_vector<Streaming>(to, a);
      vectors16::store_vector<Streaming>(to + 16, b);
      vectors16::store_vector<Streaming>(to + 32, c);
      vectors16::store_vector<Streaming>(to + 48, d);
    }
  }
  for (; at < bytes; at += vectors16::kVectorBytes) {
    vectors16::Bytes const a = *reinterpret_cast<const vectors16::Bytes*>(src + at);
    for (int i = 0; i < n; ++i) vectors16::store_vector<Streaming>(dst[i] + at, a);
  }
}

template <bool Streaming>
inline void zero_row(std::byte* dst, Span span) noexcept {
  for (std::size_t at = span.begin; at < span.end; at += vectors16::kVectorBytes)
    vectors16::store_vector<Streaming>(dst + at, vectors16::Bytes{});
}

template <Element T, bool Weighted, bool Streaming>
inline void reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                        std::byte* dst, Span span, RowVectors vectors = widest_row_vectors()) noexcept {
#if defined(MORI_EP_WIDE_ROWS)
  if (vectors == RowVectors::bytes64)
    return vectors64::reduce_rows<T, Weighted, Streaming>(srcs, weights, n, group_starts, dst, span);
  if (vectors == RowVectors::bytes32)
    return vectors32::reduce_rows<T, Weighted, Streaming>(srcs, weights, n, group_starts, dst, span);
#endif
  (void)vectors;
  vectors16::reduce_rows<T, Weighted, Streaming>(srcs, weights, n, group_starts, dst, span);
}
template <CodedRowType R, bool Weighted, bool Streaming>
inline void reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                        std::byte* dst, std::size_t elements, int part, int parts,
                        RowVectors vectors = widest_row_vectors()) noexcept {
  auto const [begin, end] = Span::part(elements, part, parts, kCodedCell<R>);
  std::size_t const payload = R::payload_bytes(elements);
  bool const grouped = (group_starts & ~1u) != 0;
#if defined(MORI_EP_WIDE_ROWS)
  if (vectors != RowVectors::bytes16)
    return vectors32::reduce_coded<R, Weighted, Streaming>(srcs, weights, n, group_starts, grouped, dst, payload, begin,
                                                           end);
#endif
  (void)vectors;
  vectors16::reduce_coded<R, Weighted, Streaming>(srcs, weights, n, group_starts, grouped, dst, payload, begin, end);
}

//! @brief Codes a row once and writes it n times: codes to `payloads`, scales to `scales`.
template <CodedRowType R, bool Streaming>
inline void encode_row(const std::byte* src, std::byte* const* payloads, std::byte* const* scales, int n,
                       std::size_t elements, int part, int parts, RowVectors vectors = widest_row_vectors()) noexcept {
  auto const span = Span::part(elements, part, parts, kCodedCell<R>);
#if defined(MORI_EP_WIDE_ROWS)
  if (vectors != RowVectors::bytes16) return vectors32::encode_row<R, Streaming>(src, payloads, scales, n, span);
#endif
  (void)vectors;
  vectors16::encode_row<R, Streaming>(src, payloads, scales, n, span);
}

}  // namespace mori_ep::exec::host
