// SPDX-License-Identifier: MIT
//! @file The loops of coded rows for vectors of MORI_EP_ROW_BYTES bytes; row_loops.hpp includes it inside its namespace,
//!       once for each width. Codes become fp32 in the order of the elements.
#if !defined(MORI_EP_ROW_BYTES)
#include "mori_ep/exec/host/rows.hpp"
#else

inline constexpr std::size_t kWidth = kVectorBytes / sizeof(float);  // fp32 in a vector

#if MORI_EP_ROW_BYTES > 16
//! @brief kWidth bytes, a word each. (By name: g++ 12 converts such vectors byte by byte.)
inline Words words_of(const void* octets) noexcept {
  std::uint64_t parts[2] = {};
  __builtin_memcpy(parts, octets, kWidth);
  using Pair = std::uint64_t __attribute__((vector_size(16)));
  Pair const held = {parts[0], parts[1]};
  Words words;
  asm("vpmovzxbd %1, %0" : "=x"(words) : "x"(held));
  return words;
}
#endif

//! @brief kWidth of what the 64, 128 or 256 bits of codes at `src` hold, a code in each word.
template <Code C>
inline Words load_codes(const std::byte* src) noexcept {
#if MORI_EP_ROW_BYTES == 16
  auto const* const from = reinterpret_cast<const std::uint8_t*>(src);
  if constexpr (numeric::CodeTraits<C>::kElements == 2)
    return Words{from[0] & 15u, std::uint32_t{from[0]} >> 4, from[1] & 15u, std::uint32_t{from[1]} >> 4};
  else
    return Words{from[0], from[1], from[2], from[3]};
#else
  if constexpr (numeric::CodeTraits<C>::kElements == 2) {
    std::uint64_t octets[kWidth / 8];
    for (std::size_t i = 0; i < kWidth / 8; ++i) {
      std::uint32_t pairs;
      __builtin_memcpy(&pairs, src + 4 * i, sizeof(pairs));
      std::uint64_t spread = pairs;
      spread = (spread | (spread << 16)) & 0x0000ffff0000ffffu;
      spread = (spread | (spread << 8)) & 0x00ff00ff00ff00ffu;
      octets[i] = (spread | (spread << 4)) & 0x0f0f0f0f0f0f0f0fu;
    }
    return words_of(octets);
  } else {
    return words_of(src);
  }
#endif
}

#if MORI_EP_ROW_BYTES > 16
//! @brief The lowest byte of each word, side by side. (g++ 12 converts such vectors byte by byte.)
template <std::size_t... I>
inline Bytes lowest_bytes(const Bytes& words, std::index_sequence<I...>) noexcept {
  return __builtin_shufflevector(words, words, (4 * I % kVectorBytes)...);
}
#endif

//! @brief The reverse; `codes` have no bits beyond a code's.
template <Code C>
inline void store_codes(std::byte* dst, const Words& codes) noexcept {
#if MORI_EP_ROW_BYTES == 16
  auto* const to = reinterpret_cast<std::uint8_t*>(dst);
  if constexpr (numeric::CodeTraits<C>::kElements == 2) {
    to[0] = static_cast<std::uint8_t>(codes[0] | codes[1] << 4);
    to[1] = static_cast<std::uint8_t>(codes[2] | codes[3] << 4);
  } else {
    for (int i = 0; i < 4; ++i) to[i] = static_cast<std::uint8_t>(codes[i]);
  }
#else
  if constexpr (numeric::CodeTraits<C>::kElements == 2) {
    using Pairs = std::uint8_t __attribute__((vector_size(kWidth / 2)));
    using Wide = std::uint64_t __attribute__((vector_size(kVectorBytes), may_alias));
    Wide const wide = as<Wide>(codes);
    auto const pairs = __builtin_convertvector((wide | (wide >> 28)) & 0xff, Pairs);
    __builtin_memcpy(dst, &pairs, sizeof(pairs));
  } else {
    Bytes const octets = lowest_bytes(as<Bytes>(codes), std::make_index_sequence<kVectorBytes>{});
    __builtin_memcpy(dst, &octets, kWidth);
  }
#endif
}

inline Words select(const Words& mask, const Words& yes, const Words& no) noexcept {
  return (mask & yes) | (~mask & no);
}

//! @brief The format's numbers as `numeric::Minifloat` has them.
template <Code C>
struct CodeLayout {
  static constexpr bool kHalf = std::same_as<C, fp4x2_e2m1>, kOcp = std::same_as<C, fp8_e4m3>,
                        kFnuz = std::same_as<C, fp8_e4m3_fnuz>;
  static constexpr int kMantissa = numeric::CodeTraits<C>::kMantissa, kShift = 23 - kMantissa;
  static constexpr int kBias = kHalf ? 1 : kOcp ? 7 : kFnuz ? 8 : 15;
  static constexpr std::uint32_t kSign = kHalf ? 8 : 0x80, kSignShift = kHalf ? 28 : 24;
  static constexpr std::uint32_t kLargest = kHalf ? 7 : kOcp ? 0x7e : kFnuz ? 0x7f : 0x7b;
  static constexpr std::uint32_t kNan = kFnuz ? 0x80 : 0x7f;
};

//! @brief `Casts`: codes of NaN and infinity mean what they are. Blocks have none: their scale is NaN.
template <Code C, bool Casts>
inline Floats decode(const Words& codes) noexcept {
  using L = CodeLayout<C>;
  constexpr std::uint32_t kLeast = std::uint32_t{128 - L::kBias} << 23;  // as an fp32, the smallest normal number
  Words const magnitude = codes & (L::kSign - 1), moved = magnitude << L::kShift;
  Words const normal = moved + (std::uint32_t{127 - L::kBias} << 23);
  Words const denormal = as<Words>(as<Floats>(moved + kLeast) - (Floats{} + __builtin_bit_cast(float, kLeast)));
  Words const is_small = as<Words>(as<Ints>(magnitude) < (1 << L::kMantissa));
  Words value = select(is_small, denormal, normal) | ((codes & L::kSign) << L::kSignShift);
  if constexpr (Casts) {
    Words const sign = (codes & L::kSign) << L::kSignShift;
    if constexpr (L::kFnuz)
      value = select(as<Words>(codes == 0x80u), Words{} + 0x7fc00000u, value);
    else if constexpr (L::kOcp)
      value = select(as<Words>(magnitude == 0x7fu), 0x7fc00000u | sign, value);
    else {
      value = select(as<Words>(magnitude == 0x7cu), 0x7f800000u | sign, value);
      value = select(as<Words>(as<Ints>(magnitude) > 0x7c), 0x7fc00000u | sign, value);
    }
  }
  return as<Floats>(value);
}

//! @brief Rounds to nearest even and saturates. `Casts`: what is not finite becomes NaN.
template <Code C, bool Casts>
inline Words encode(const Floats& value) noexcept {
  using L = CodeLayout<C>;
  constexpr std::uint32_t kAdded = std::uint32_t{128 - L::kBias + L::kShift} << 23;
  Words const u = as<Words>(value), a = u & 0x7fffffffu;
  Words const rebased = a - (std::uint32_t{127 - L::kBias} << 23);
  Words const normal = (rebased + ((1u << (L::kShift - 1)) - 1) + ((rebased >> L::kShift) & 1u)) >> L::kShift;
  Words const denormal = as<Words>(as<Floats>(a) + (Floats{} + __builtin_bit_cast(float, kAdded))) - kAdded;
  Words const is_small = as<Words>(as<Ints>(a) < (std::int32_t{128 - L::kBias} << 23));
  Words code = select(is_small, denormal, normal);
  code = select(as<Words>(as<Ints>(code) > std::int32_t{L::kLargest}), Words{} + L::kLargest, code);
  Words sign = (u >> L::kSignShift) & L::kSign;
  if constexpr (L::kFnuz) sign = sign & as<Words>(code != 0u);
  code = code | sign;
  if constexpr (Casts) code = select(as<Words>(as<Ints>(a) > 0x7f7fffff), Words{} + L::kNan, code);
  return code;
}

#if MORI_EP_ROW_BYTES > 16
template <std::size_t Step, std::size_t First, class V, std::size_t... I>
inline V picked(const V& a, const V& b, std::index_sequence<I...>) noexcept {
  return __builtin_shufflevector(a, b, (First + Step * I)...);
}
template <std::size_t First, class V, std::size_t... I>
inline V zipped(const V& a, const V& b, std::index_sequence<I...>) noexcept {
  return __builtin_shufflevector(a, b, (First + I / 2 + (I % 2) * kWidth)...);
}
#endif

//! @brief A vector of T and its fp32 in the order of the elements.
template <Element T>
struct InOrder {
  static constexpr int kCount = Widened<T>::kCount;
  //! `widen` gives 16-bit elements in order where F16C does it, else the even ones and the odd ones.
  static constexpr bool kSplit = kCount == 2 && (kVectorBytes == 16 || !std::same_as<T, fp16>);
  Floats part[kCount];

  static InOrder of(const std::byte* src) noexcept {
    Widened<T> const wide = widen<T>(src);
    InOrder out;
    if constexpr (!kSplit) {
      for (int p = 0; p < kCount; ++p) out.part[p] = wide.part[p];
    } else {
      Floats const &a = wide.part[0], &b = wide.part[1];
#if MORI_EP_ROW_BYTES == 16
      out.part[0] = Floats{a[0], b[0], a[1], b[1]};
      out.part[1] = Floats{a[2], b[2], a[3], b[3]};
#else
      out.part[0] = zipped<0>(a, b, std::make_index_sequence<kWidth>{});
      out.part[1] = zipped<kWidth / 2>(a, b, std::make_index_sequence<kWidth>{});
#endif
    }
    return out;
  }
  [[nodiscard]] Bytes rounded() const noexcept {
    Widened<T> wide;
    if constexpr (!kSplit) {
      for (int p = 0; p < kCount; ++p) wide.part[p] = part[p];
    } else {
      Floats const &a = part[0], &b = part[1];
#if MORI_EP_ROW_BYTES == 16
      wide.part[0] = Floats{a[0], a[2], b[0], b[2]};
      wide.part[1] = Floats{a[1], a[3], b[1], b[3]};
#else
      wide.part[0] = picked<2, 0>(a, b, std::make_index_sequence<kWidth>{});
      wide.part[1] = picked<2, 1>(a, b, std::make_index_sequence<kWidth>{});
#endif
    }
    return narrow<T>(wide);
  }
};

//! @brief The bits of the largest magnitude of `count` elements of T.
template <Element T>
inline std::uint32_t largest_bits(const std::byte* src, std::size_t count) noexcept {
  Ints largest{};
  std::size_t const bytes = count * sizeof(T);
  std::uint32_t out = 0;
  std::size_t at = 0;
  for (; at + kVectorBytes <= bytes; at += kVectorBytes) {
    Widened<T> const wide = widen<T>(src + at);
    MORI_EP_UNROLL
    for (int p = 0; p < Widened<T>::kCount; ++p) {
      Ints const magnitude = as<Ints>(as<Words>(wide.part[p]) & 0x7fffffffu);
      largest = as<Ints>(select(as<Words>(magnitude > largest), as<Words>(magnitude), as<Words>(largest)));
    }
  }
  for (std::size_t i = 0; i < kWidth; ++i)
    out = static_cast<std::uint32_t>(largest[i]) > out ? static_cast<std::uint32_t>(largest[i]) : out;
#if MORI_EP_ROW_BYTES > 16
  if (at < bytes) {
    std::uint32_t const rest = vectors16::largest_bits<T>(src + at, (bytes - at) / sizeof(T));
    out = rest > out ? rest : out;
  }
#endif
  return out;
}

//! @brief `count` elements, a multiple of the codes in 16 bytes, times `factor`.
template <CodedRowType R>
inline void encode_elements(const std::byte* src, float factor, std::size_t count, std::byte* dst) noexcept {
  using T = typename R::ElementType;
  using C = typename R::CodeType;
  constexpr std::size_t kEach = kVectorBytes / sizeof(T);
  constexpr auto kPer = static_cast<std::size_t>(R::Traits::kElements);
  std::size_t i = 0;
  for (; i + kEach <= count; i += kEach) {
    __builtin_prefetch(src + i * sizeof(T) + kPrefetchBytes);
    auto const in = InOrder<T>::of(src + i * sizeof(T));
    MORI_EP_UNROLL
    for (int p = 0; p < InOrder<T>::kCount; ++p) {
      Floats const value = R::kScaled ? in.part[p] * (Floats{} + factor) : in.part[p];
      store_codes<C>(dst + (i + static_cast<std::size_t>(p) * kWidth) / kPer, encode<C, !R::kScaled>(value));
    }
  }
#if MORI_EP_ROW_BYTES > 16
  if (i < count) vectors16::encode_elements<R>(src + i * sizeof(T), factor, count - i, dst + i / kPer);
#endif
}

//! @brief Codes at most a block; its scale.
template <CodedRowType R>
inline typename R::ScaleType encode_block(const std::byte* src, std::size_t count, std::byte* dst) noexcept {
  typename R::ScaleType scale{};
  float factor = 1;
  if constexpr (R::kScaled) {
    scale = R::scale_of(largest_bits<typename R::ElementType>(src, count));
    factor = R::factor_of(scale);
  }
  encode_elements<R>(src, factor, count, dst);
  return scale;
}

//! @brief kWidth elements of one source from element `at` on: decoded, scaled and, if asked, weighted.
template <CodedRowType R, bool Weighted>
inline Floats coded_term(const std::byte* row, std::size_t payload, std::size_t at, const float* weight) noexcept {
  Floats value = decode<typename R::CodeType, !R::kScaled>(
      load_codes<typename R::CodeType>(row + at / static_cast<std::size_t>(R::Traits::kElements)));
  if constexpr (R::kScaled) {
    typename R::ScaleType scale;
    __builtin_memcpy(&scale, row + payload + at / static_cast<std::size_t>(R::kBlock) * sizeof(scale), sizeof(scale));
    value = rounded_product(value, Floats{} + static_cast<float>(scale));
  }
  if constexpr (Weighted) value = rounded_product(value, Floats{} + *weight);
  return value;
}

//! @brief The fp32 sum of kWidth elements from `at` on. `Grouped` as reduce_rows has it.
template <CodedRowType R, bool Weighted, bool Grouped>
inline Floats coded_sum(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                        std::size_t payload, std::size_t at) noexcept {
  if (std::size_t const byte = at / static_cast<std::size_t>(R::Traits::kElements); byte % kLineBytes == 0)
    for (int i = 0; i < n; ++i) __builtin_prefetch(srcs[i] + byte + kPrefetchBytes);
  Floats group = coded_term<R, Weighted>(srcs[0], payload, at, weights), total = group;
  bool closed = false;
  for (int i = 1; i < n; ++i) {
    Floats const term = coded_term<R, Weighted>(srcs[i], payload, at, Weighted ? weights + i : nullptr);
    if (!Grouped || ((group_starts >> i) & 1u) == 0) {
      group = group + term;
      continue;
    }
    total = closed ? total + group : group;
    closed = true;
    group = term;
  }
  return closed ? total + group : group;
}

//! @brief Elements [begin, end) of the sum, rounded to R's element. Both are multiples of 16 bytes of that.
template <CodedRowType R, bool Weighted, bool Streaming, bool Grouped>
inline void reduce_coded(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                         std::byte* dst, std::size_t payload, std::size_t begin, std::size_t end) noexcept {
  using T = typename R::ElementType;
  constexpr std::size_t kEach = kVectorBytes / sizeof(T);
  // Not from where wide stores are aligned on, as reduce_all does: a vector of codes must not lie in two blocks.
  bool const aligned = reinterpret_cast<std::uintptr_t>(dst) % kVectorBytes == 0;
  std::size_t at = begin;
  for (; at + kEach <= end; at += kEach) {
    InOrder<T> sum;
    MORI_EP_UNROLL
    for (int p = 0; p < InOrder<T>::kCount; ++p)
      sum.part[p] = coded_sum<R, Weighted, Grouped>(srcs, weights, n, group_starts, payload,
                                                    at + static_cast<std::size_t>(p) * kWidth);
    std::byte* const to = dst + at * sizeof(T);
    Bytes const rounded = sum.rounded();
    if (aligned)
      store_vector<Streaming>(to, rounded);
    else
      for (std::size_t piece = 0; piece < kVectorBytes; piece += 16)
        vectors16::store_vector<Streaming>(
            to + piece, vectors16::load<vectors16::Bytes>(reinterpret_cast<const std::byte*>(&rounded) + piece));
  }
#if MORI_EP_ROW_BYTES > 16
  if (at < end)
    vectors16::reduce_coded<R, Weighted, Streaming, Grouped>(srcs, weights, n, group_starts, dst, payload, at, end);
#endif
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
  constexpr std::size_t kEach = kVectorBytes / sizeof(T);
  for (std::size_t at = begin; at < end; at += kEach) {
    Floats part[InOrder<T>::kCount];
    for (int p = 0; p < InOrder<T>::kCount; ++p)
      part[p] = coded_sum<R, Weighted, false>(srcs, weights, n, 0, payload, at + static_cast<std::size_t>(p) * kWidth);
    Floats kept[InOrder<T>::kCount];
    if constexpr (InOrder<T>::kCount == 2) {
      kept[0] = Floats{part[0][0], part[0][2], part[1][0], part[1][2]};
      kept[1] = Floats{part[0][1], part[0][3], part[1][1], part[1][3]};
    } else {
      kept[0] = part[0];
    }
    for (int p = 0; p < InOrder<T>::kCount; ++p)
      store_vector<false>(dst + at * sizeof(float) + static_cast<std::size_t>(p) * kVectorBytes, as<Bytes>(kept[p]));
  }
}
#endif

#endif
