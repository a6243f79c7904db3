// SPDX-License-Identifier: MIT
//! @file The loops of coded rows, of vectors of MORI_EP_ROW_BYTES bytes; row_loops.hpp includes it inside its namespace,
//!       once for each width that has them.
#if !defined(MORI_EP_ROW_BYTES)
#include "mori_ep/exec/host/rows.hpp"
#else

#include "mori_ep/exec/host/code_vectors.hpp"

//! @brief `count` elements, a multiple of the codes in 16 bytes, times `factor`.
template <CodedRowType R>
[[gnu::always_inline]] inline void encode_elements(const std::byte* src, float factor, std::size_t count,
                                                   std::byte* dst) noexcept {
  using T = typename R::ElementType;
  using C = typename R::CodeType;
  std::size_t i = 0;
  for (; i + kVectorBytes <= count; i += kVectorBytes) {
    for (std::size_t ahead = 0; ahead < kVectorBytes * sizeof(T); ahead += kLineBytes)
      __builtin_prefetch(src + i * sizeof(T) + kPrefetchBytes + ahead);
    store_codes<C>(dst + R::payload_bytes(i), encode<R>(src + i * sizeof(T), factor));
  }
#if MORI_EP_ROW_BYTES > 16
  if (i < count) vectors16::encode_elements<R>(src + i * sizeof(T), factor, count - i, dst + R::payload_bytes(i));
#endif
}

//! @brief A block's scale and what its elements are multiplied with.
template <CodedRowType R>
struct BlockFactor {
  typename R::ScaleType scale{};
  float factor = 1;

  [[gnu::always_inline]] static BlockFactor of(const std::byte* src, std::size_t count) noexcept {
    if constexpr (!R::kScaled) return {};
    auto const scale = R::scale_of(largest_bits<typename R::ElementType>(src, count));
    return {scale, R::factor_of(scale)};
  }
};

//! @brief Elements `span` of a row, which begin where a block does: codes n times to `payloads`, scales to `scales`.
template <CodedRowType R, bool Streaming>
inline void encode_row(const std::byte* src, std::byte* const* payloads, std::byte* const* scales, int n,
                       Span span) noexcept {
  constexpr std::size_t kCount = R::kScaled ? static_cast<std::size_t>(R::kBlock) : kCodedCell<R>;
  auto const length = [&](std::size_t at) { return at + kCount < span.end ? kCount : span.end - at; };
  // With a constant length loops unroll, hence what follows is there for whole blocks and for the last.
  auto const block = [&](std::size_t at) {
    std::byte const* const from = src + at * sizeof(typename R::ElementType);
    return length(at) == kCount ? BlockFactor<R>::of(from, kCount) : BlockFactor<R>::of(from, length(at));
  };
  alignas(kLineBytes) std::byte codes[kCount];
  // A block ahead, since a factor takes as long as a block's codes.
  BlockFactor<R> next;
  if (span.begin < span.end) next = block(span.begin);
  for (std::size_t at = span.begin; at < span.end; at += kCount) {
    auto const [scale, factor] = next;
    if (at + kCount < span.end) next = block(at + kCount);
    std::byte const* const from = src + at * sizeof(typename R::ElementType);
    if (length(at) == kCount)
      encode_elements<R>(from, factor, kCount, codes);
    else
      encode_elements<R>(from, factor, length(at), codes);
    for (int i = 0; i < n; ++i) {
      for (std::size_t byte = 0; byte < R::payload_bytes(length(at)); byte += 16)
        vectors16::store_vector<Streaming>(payloads[i] + R::payload_bytes(at) + byte,
                                           vectors16::load<vectors16::Bytes>(codes + byte));
      if constexpr (R::kScaled)
        __builtin_memcpy(scales[i] + at / static_cast<std::size_t>(R::kBlock) * sizeof(scale), &scale, sizeof(scale));
    }
  }
}

//! @brief `Elements` of one source from element `at` on, all in one block: decoded, scaled and, if asked, weighted.
template <CodedRowType R, bool Weighted, int Elements>
struct CodedTerms {
  using C = typename R::CodeType;
  static constexpr int kParts = Elements / static_cast<int>(kWidth);
  Floats part[kParts];

  [[gnu::always_inline]] CodedTerms(const std::byte* row, std::size_t payload, std::size_t at,
                                    const float* weight) noexcept {
    decode<C, !R::kScaled, Elements>(row + R::payload_bytes(at), part);
    float scale = 1;
    if constexpr (R::kScaled) {
      typename R::ScaleType held;
      __builtin_memcpy(&held, row + payload + at / static_cast<std::size_t>(R::kBlock) * sizeof(held), sizeof(held));
      scale = static_cast<float>(held);
    }
    // An fp32 scale is at most the largest fp32 over the largest code, so that lifting it is exact.
    constexpr bool kLiftScale = R::kScaled && std::same_as<typename R::ScaleType, float>;
    if constexpr (kLiftScale) scale *= kLift<C>;
    MORI_EP_UNROLL
    for (int p = 0; p < kParts; ++p) {
      if constexpr (!kLiftScale && kLift<C> != 1.0f) part[p] = part[p] * kLift<C>;
      if constexpr (R::kScaled) part[p] = rounded_product(part[p], Floats{} + scale);
      if constexpr (Weighted) part[p] = rounded_product(part[p], Floats{} + *weight);
    }
  }
  void add(const CodedTerms& other) noexcept {
    MORI_EP_UNROLL
    for (int p = 0; p < kParts; ++p) part[p] = part[p] + other.part[p];
  }
  template <bool Streaming>
  [[gnu::always_inline]] void round_to(std::byte* dst, bool aligned) const noexcept {
    using T = typename R::ElementType;
    MORI_EP_UNROLL
    for (int p = 0; p < kParts; p += InOrder<T>::kCount) {
      InOrder<T> sum;
      for (int q = 0; q < InOrder<T>::kCount; ++q) sum.part[q] = part[p + q];
      Bytes const out = sum.rounded();
      std::byte* const to = dst + static_cast<std::size_t>(p / InOrder<T>::kCount) * kVectorBytes;
      if (aligned) {
        store_vector<Streaming>(to, out);
      } else {
        for (std::size_t piece = 0; piece < kVectorBytes; piece += 16)
          vectors16::store_vector<Streaming>(
              to + piece, vectors16::load<vectors16::Bytes>(reinterpret_cast<const std::byte*>(&out) + piece));
      }
    }
  }
};

//! @brief One step of `reduce_coded`.
template <CodedRowType R, bool Weighted, bool Grouped, int Elements>
[[gnu::always_inline]] inline CodedTerms<R, Weighted, Elements> coded_sum(const std::byte* const* srcs,
                                                                          const float* weights, int n,
                                                                          std::uint32_t group_starts,
                                                                          std::size_t payload,
                                                                          std::size_t at) noexcept {
  if (R::payload_bytes(at) % kLineBytes == 0)
    for (int i = 0; i < n; ++i) __builtin_prefetch(srcs[i] + R::payload_bytes(at) + kPrefetchBytes);
  using Sum = CodedTerms<R, Weighted, Elements>;
  return sum_of<Sum, Grouped>(n, group_starts,
                              [&](int i) { return Sum(srcs[i], payload, at, Weighted ? weights + i : nullptr); });
}

//! @brief Elements [begin, end) of the sum, rounded to R's element. Both are multiples of what 16 bytes of codes hold.
template <CodedRowType R, bool Weighted, bool Streaming, bool Grouped>
inline void reduce_coded(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                         std::byte* dst, std::size_t payload, std::size_t begin, std::size_t end) noexcept {
  using T = typename R::ElementType;
  constexpr int kUnit = R::kUnit, kStep = kVectorBytes == 32 && R::kBlock != 16 ? 32 : kUnit;
  bool const aligned = reinterpret_cast<std::uintptr_t>(dst) % kVectorBytes == 0;
  std::size_t at = begin;
  for (; at + kStep <= end; at += kStep)
    coded_sum<R, Weighted, Grouped, kStep>(srcs, weights, n, group_starts, payload, at)
        .template round_to<Streaming>(dst + at * sizeof(T), aligned);
  if constexpr (kStep != kUnit)
    for (; at < end; at += kUnit)
      coded_sum<R, Weighted, Grouped, kUnit>(srcs, weights, n, group_starts, payload, at)
          .template round_to<Streaming>(dst + at * sizeof(T), aligned);
}

template <CodedRowType R, bool Weighted, bool Streaming>
inline void reduce_coded(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                         bool grouped, std::byte* dst, std::size_t payload, std::size_t begin,
                         std::size_t end) noexcept {
  if (grouped)
    reduce_coded<R, Weighted, Streaming, true>(srcs, weights, n, group_starts, dst, payload, begin, end);
  else
    reduce_coded<R, Weighted, Streaming, false>(srcs, weights, n, group_starts, dst, payload, begin, end);
}

#if MORI_EP_ROW_BYTES == 16
//! @brief Elements [begin, end) of the sum in fp32, as `sum_rows` of T keeps it.
template <CodedRowType R, bool Weighted>
inline void sum_coded(const std::byte* const* srcs, const float* weights, int n, std::byte* dst, std::size_t payload,
                      std::size_t begin, std::size_t end) noexcept {
  using T = typename R::ElementType;
  for (std::size_t at = begin; at < end; at += static_cast<std::size_t>(R::kUnit)) {
    auto const sum = coded_sum<R, Weighted, false, R::kUnit>(srcs, weights, n, 0, payload, at);
    std::byte* const to = dst + at * sizeof(float);
    for (int p = 0; p < sum.kParts; p += InOrder<T>::kCount) {
      InOrder<T> ordered;
      for (int q = 0; q < InOrder<T>::kCount; ++q) ordered.part[q] = sum.part[p + q];
      auto const kept = ordered.widened();
      for (int q = 0; q < InOrder<T>::kCount; ++q)
        store_vector<false>(to + static_cast<std::size_t>(p + q) * kVectorBytes, as<Bytes>(kept.part[q]));
    }
  }
}
#endif

#endif
