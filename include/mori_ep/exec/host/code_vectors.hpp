// SPDX-License-Identifier: MIT
//! @file Elements, codes and fp32 in vectors of MORI_EP_ROW_BYTES bytes, in the order of the elements; row_loops.hpp
//!       includes it inside its namespace, once for each width that has the loops of coded rows.
#if !defined(MORI_EP_ROW_BYTES)
#include "mori_ep/exec/host/rows.hpp"
#else

inline constexpr std::size_t kWidth = kVectorBytes / sizeof(float);  // fp32 in a vector
using SignedHalves = std::int16_t __attribute__((vector_size(kVectorBytes), may_alias));

template <class V>
inline V select(const V& mask, const V& yes, const V& no) noexcept {
  return (mask & yes) | (~mask & no);
}
inline Ints smaller(const Ints& a, const Ints& b) noexcept { return a < b ? a : b; }
inline Ints larger(const Ints& a, const Ints& b) noexcept { return a > b ? a : b; }

// By name in 32 bytes where g++ 12 takes shuffles apart; <immintrin.h> takes it 0.4 s to read.

#if MORI_EP_ROW_BYTES == 32

using Half = std::uint64_t __attribute__((vector_size(16), may_alias));
using Quads = std::uint64_t __attribute__((vector_size(32), may_alias));
using Halves = std::uint16_t __attribute__((vector_size(32), may_alias));

inline Half lower(const Quads& v) noexcept { return __builtin_shufflevector(v, v, 0, 1); }
inline Half upper(const Quads& v) noexcept { return __builtin_shufflevector(v, v, 2, 3); }
inline Floats from_fp16(Half halves) noexcept {
  Floats out;
  asm("vcvtph2ps %1, %0" : "=x"(out) : "x"(halves));
  return out;
}
inline Words packed_words(const Words& a, const Words& b) noexcept {
  Words out;
  asm("vpackssdw %2, %1, %0" : "=x"(out) : "x"(a), "x"(b));
  return out;
}
//! @brief 16-bit words as bytes with their sign.
inline Bytes packed_signs(const Words& a, const Words& b) noexcept {
  Bytes out;
  asm("vpacksswb %2, %1, %0" : "=x"(out) : "x"(a), "x"(b));
  return out;
}
inline Bytes packed_bytes(const Words& a, const Words& b) noexcept {
  Bytes out;
  asm("vpackuswb %2, %1, %0" : "=x"(out) : "x"(a), "x"(b));
  return out;
}

#elif defined(__SSE2__)

inline Words packed_words(const Words& a, const Words& b) noexcept {
  return as<Words>(_mm_packs_epi32(as<__m128i>(a), as<__m128i>(b)));
}
inline Bytes packed_signs(const Words& a, const Words& b) noexcept {
  return as<Bytes>(_mm_packs_epi16(as<__m128i>(a), as<__m128i>(b)));
}
inline Bytes packed_bytes(const Words& a, const Words& b) noexcept {
  return as<Bytes>(_mm_packus_epi16(as<__m128i>(a), as<__m128i>(b)));
}

#endif

//! @brief A vector of T and its fp32.
template <Element T>
struct InOrder {
  static constexpr int kCount = Widened<T>::kCount;
  //! `widen` gives 16-bit elements in order where F16C does it, else the even ones and the odd ones.
  static constexpr bool kSplit = kCount == 2 && (kVectorBytes == 16 || !std::same_as<T, fp16>);
  Floats part[kCount];

  static InOrder of(const std::byte* src) noexcept {
    InOrder out;
#if MORI_EP_ROW_BYTES == 32
    if constexpr (kSplit) {
      MORI_EP_UNROLL
      for (int p = 0; p < 2; ++p) {
        Words words;
        asm("vpmovzxwd %1, %0" : "=x"(words) : "m"(*reinterpret_cast<const Half*>(src + p * 16)));
        out.part[p] = as<Floats>(words << 16);
      }
      return out;
    }
#endif
    Widened<T> const wide = widen<T>(src);
    if constexpr (!kSplit) {
      for (int p = 0; p < kCount; ++p) out.part[p] = wide.part[p];
    } else {
      Floats const &a = wide.part[0], &b = wide.part[1];
      out.part[0] = Floats{a[0], b[0], a[1], b[1]};
      out.part[1] = Floats{a[2], b[2], a[3], b[3]};
    }
    return out;
  }
  //! @brief What `widen` gives of a vector with this fp32.
  [[nodiscard]] Widened<T> widened() const noexcept {
    Widened<T> wide;
    if constexpr (!kSplit) {
      for (int p = 0; p < kCount; ++p) wide.part[p] = part[p];
    } else {
      Floats const &a = part[0], &b = part[1];
#if MORI_EP_ROW_BYTES == 32
      // The even ones and the odd ones of every 16 bytes; `rounded` puts the vector in order.
      wide.part[0] = __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14);
      wide.part[1] = __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
#else
      wide.part[0] = Floats{a[0], a[2], b[0], b[2]};
      wide.part[1] = Floats{a[1], a[3], b[1], b[3]};
#endif
    }
    return wide;
  }
  [[nodiscard]] Bytes rounded() const noexcept {
    Bytes const narrowed = narrow<T>(widened());
#if MORI_EP_ROW_BYTES == 32
    if constexpr (kSplit) {
      Quads const quads = as<Quads>(narrowed);
      return as<Bytes>(__builtin_shufflevector(quads, quads, 0, 2, 1, 3));
    }
#endif
    return narrowed;
  }
};

//! @brief The magnitudes and signs of as many elements as a vector has bytes. The codes of these pass through bytes in an
//!        order that suits T, which is that of `sign`.
template <Element T>
struct Magnitudes {
  static constexpr bool kPaired = kVectorBytes == 32 && std::same_as<T, bf16>;  // the even ones, the odd ones, twice
  Floats part[4];
  Bytes sign;  // in the upper bit

  [[gnu::always_inline]] static Magnitudes of(const std::byte* src) noexcept {
    Magnitudes out;
    if constexpr (kPaired) {
      Words const pairs[2] = {load<Words>(src), load<Words>(src + kVectorBytes)};
#if MORI_EP_ROW_BYTES == 32
      out.sign = packed_signs(pairs[0], pairs[1]);
#endif
      MORI_EP_UNROLL
      for (int p = 0; p < 4; ++p) {
        Words const magnitudes = pairs[p / 2] & 0x7fff7fffu;
        out.part[p] = as<Floats>(p % 2 == 0 ? magnitudes << 16 : magnitudes & 0xffff0000u);
      }
    } else {
      Words bits[4];
      MORI_EP_UNROLL
      for (int p = 0; p < 4; ++p) {
        if (p % InOrder<T>::kCount == 0) {
          auto const in = InOrder<T>::of(src + static_cast<std::size_t>(p) * kWidth * sizeof(T));
          for (int q = 0; q < InOrder<T>::kCount; ++q) bits[p + q] = as<Words>(in.part[q]);
        }
        out.part[p] = as<Floats>(bits[p] & 0x7fffffffu);
      }
#if MORI_EP_ROW_BYTES == 32 || defined(__SSE2__)
      out.sign = packed_signs(packed_words(bits[0], bits[1]), packed_words(bits[2], bits[3]));
#else
      for (std::size_t i = 0; i < 16; ++i) out.sign[i] = static_cast<std::uint8_t>(bits[i / 4][i % 4] >> 24);
#endif
    }
    return out;
  }
  //! @brief The lowest bytes of the words that became of the parts, in the order of `sign`.
  [[gnu::always_inline]] static Bytes lowest_bytes(const Words (&words)[4]) noexcept {
#if MORI_EP_ROW_BYTES == 32
    if constexpr (kPaired) {
      Words bytes[4];
      MORI_EP_UNROLL
      for (int p = 0; p < 4; ++p) {
        constexpr std::uint64_t kNone = 0x8080808080808080u;
        constexpr std::uint64_t kPlaces[2] = {0x800c'8008'8004'8000u, 0x0c80'0880'0480'0080u};
        Quads const places = p < 2 ? Quads{kPlaces[p % 2], kNone, kPlaces[p % 2], kNone}
                                   : Quads{kNone, kPlaces[p % 2], kNone, kPlaces[p % 2]};
        asm("vpshufb %2, %1, %0" : "=x"(bytes[p]) : "x"(words[p]), "x"(places));
      }
      return as<Bytes>((bytes[0] | bytes[1]) | (bytes[2] | bytes[3]));
    }
#endif
#if MORI_EP_ROW_BYTES == 32 || defined(__SSE2__)
    return packed_bytes(packed_words(words[0] & 0xff, words[1] & 0xff), packed_words(words[2] & 0xff, words[3] & 0xff));
#else
    Bytes out;
    for (std::size_t i = 0; i < 16; ++i) out[i] = static_cast<std::uint8_t>(words[i / 4][i % 4]);
    return out;
#endif
  }
  //! @brief Such bytes in the order of the elements.
  [[gnu::always_inline]] static Bytes in_order(const Bytes& bytes) noexcept {
#if MORI_EP_ROW_BYTES == 32
    if constexpr (kPaired)
      return as<Bytes>(__builtin_shufflevector(as<Quads>(bytes), as<Quads>(bytes), 0, 2, 1, 3));
    else
      return as<Bytes>(__builtin_shufflevector(as<Words>(bytes), as<Words>(bytes), 0, 4, 1, 5, 2, 6, 3, 7));
#else
    return bytes;
#endif
  }
};

//! @brief The codes of as many elements as a vector has bytes, times `factor`; a byte each, of fp4 too. To nearest even.
//!        Casts, which have no factor, saturate, and are NaN where the element is not finite.
template <CodedRowType R>
[[gnu::always_inline]] inline Bytes encode(const std::byte* src, float factor) noexcept {
  using T = typename R::ElementType;
  using C = typename R::CodeType;
  using F = typename C::Format;
  auto const in = Magnitudes<T>::of(src);
  Words sums[4], lost[4];
  MORI_EP_UNROLL
  for (int p = 0; p < 4; ++p) {
    Ints a;
    if constexpr (R::kScaled) {
      a = as<Ints>(in.part[p] * (Floats{} + factor));
    } else {
      lost[p] = as<Words>(as<Ints>(in.part[p]) > 0x7f7fffff);
      a = smaller(as<Ints>(in.part[p]), Ints{} + static_cast<std::int32_t>(numeric::float_bits(C::kMax)));
    }
    // The power of two below, that of the smallest normal number for what is less. What is added to the element is so
    // much larger that the last bit of the code falls on the last of the fp32, where the adder rounds. Then the lowest
    // byte is the code but for the exponent, of which `power` has too much by that of the smallest normal number.
    Words const power = as<Words>(larger(a & 0x7f800000, Ints{} + static_cast<std::int32_t>(F::kSmallestNormal)));
    Floats const sum = as<Floats>(a) + as<Floats>(power + (std::uint32_t{F::kShift} << 23));
    sums[p] = as<Words>(sum) + (power >> F::kShift);
  }
  Bytes const magnitudes =
      Magnitudes<T>::lowest_bytes(sums) - static_cast<std::uint8_t>(F::kSmallestNormal >> F::kShift);
  Bytes sign = in.sign & 0x80;
  if constexpr (F::kSign == 8) sign = sign >> 4;
  if constexpr (std::same_as<C, fp8_e4m3_fnuz>) sign = sign & as<Bytes>(magnitudes != 0);
  Bytes out = magnitudes | sign;
  if constexpr (!R::kScaled)
    out = select(Magnitudes<T>::lowest_bytes(lost), Bytes{} + static_cast<std::uint8_t>(F::kNan), out);
  return Magnitudes<T>::in_order(out);
}

//! @brief Stores such codes: as many bytes, of fp4 half as many.
template <Code C>
inline void store_codes(std::byte* dst, const Bytes& codes) noexcept {
  if constexpr (numeric::CodeTraits<C>::kElements == 2) {
    using Pairs = std::uint16_t __attribute__((vector_size(kVectorBytes)));
    Pairs const pairs = (as<Pairs>(codes) | (as<Pairs>(codes) >> 4)) & 0xff;
#if MORI_EP_ROW_BYTES == 32
    Quads const out_of_order = as<Quads>(packed_bytes(as<Words>(pairs), as<Words>(pairs)));
    Half const out = __builtin_shufflevector(out_of_order, out_of_order, 0, 2);
#else
    using Out = std::uint8_t __attribute__((vector_size(kVectorBytes / 2)));
    auto const out = __builtin_convertvector(pairs, Out);
#endif
    __builtin_memcpy(dst, &out, sizeof(out));
  } else {
    __builtin_memcpy(dst, &codes, sizeof(codes));
  }
}

#if MORI_EP_ROW_BYTES == 32

//! @brief `decode` gives numbers over this: codes are fp16 with fewer bits, and where the exponent is biased by less they
//!        stand for less.
template <Code C>
inline constexpr float kLift = numeric::CodeTraits<C>::kElements == 1 ? static_cast<float>(1 << (15 - C::Format::kBias))
                                                                      : 1.0f;

//! @brief 16 codes in the upper bytes of words that are zero below, as fp16.
template <Code C, bool Casts>
inline Quads fp16_of(const Bytes& upper_bytes) noexcept {
  Halves h = as<Halves>(upper_bytes);
  if constexpr (C::Format::kMantissa == 3)
    h = as<Halves>(as<SignedHalves>(h) >> 1) & 0xbfff;  // an fp16 has a bit of exponent more
  if constexpr (Casts) {
    Halves const sign = h & 0x8000, magnitude = h & 0x7fff;
    if constexpr (std::same_as<C, fp8_e4m3>)
      h = select(as<Halves>(magnitude == 0x3f80), sign | 0x7e00, h);
    else if constexpr (std::same_as<C, fp8_e4m3_fnuz>)
      h = select(as<Halves>(h == 0x8000), Halves{} + 0x7e00, h);
    else
      h = select(as<Halves>(as<SignedHalves>(magnitude) > 0x7c00), sign | 0x7e00, h);
  }
  return as<Quads>(h);
}

//! @brief Every byte of `a` below that of `b`, of the lower and of the upper halves of every 16 bytes.
inline Bytes paired_below(const Bytes& a, const Bytes& b) noexcept {
  Bytes out;
  asm("vpunpcklbw %2, %1, %0" : "=x"(out) : "x"(a), "x"(b));
  return out;
}
inline Bytes paired_above(const Bytes& a, const Bytes& b) noexcept {
  Bytes out;
  asm("vpunpckhbw %2, %1, %0" : "=x"(out) : "x"(a), "x"(b));
  return out;
}

//! @brief 32 elements of codes, or of fp8 the 16 from 16 bytes on. `Casts`: codes of NaN and infinity mean what they are.
//!        Blocks have none: their scale is NaN.
template <Code C, bool Casts, int Elements>
[[gnu::always_inline]] inline void decode(const std::byte* src, Floats* out) noexcept {
  if constexpr (Elements == 16) {
    Bytes octets;
    asm("vpmovzxbw %1, %0" : "=x"(octets) : "x"(load<Half>(src)));
    Quads const fp16s = fp16_of<C, Casts>(as<Bytes>(as<Halves>(octets) << 8));
    out[0] = from_fp16(lower(fp16s));
    out[1] = from_fp16(upper(fp16s));
    return;
  }
  Bytes octets;
  if constexpr (numeric::CodeTraits<C>::kElements == 1) {
    octets = load<Bytes>(src);
  } else {
    // The upper byte of every number as an fp16; the lower is zero.
    constexpr Quads kNumbers = {0x4644'4240'3e3c'3800u, 0xc6c4'c2c0'bebc'b880u, 0x4644'4240'3e3c'3800u,
                                0xc6c4'c2c0'bebc'b880u};
    Bytes pairs;
    asm("vpmovzxbw %1, %0" : "=x"(pairs) : "x"(load<Half>(src)));
    Quads const nibbles = (as<Quads>(pairs) | as<Quads>(as<Halves>(pairs) << 4)) & 0x0f0f0f0f0f0f0f0fu;
    asm("vpshufb %2, %1, %0" : "=x"(octets) : "x"(kNumbers), "x"(nibbles));
  }
  Quads const even = fp16_of<C, Casts>(paired_below(Bytes{}, octets)),
              odd = fp16_of<C, Casts>(paired_above(Bytes{}, octets));
  out[0] = from_fp16(lower(even));
  out[1] = from_fp16(lower(odd));
  out[2] = from_fp16(upper(even));
  out[3] = from_fp16(upper(odd));
}

#else

template <Code C>
inline constexpr float kLift = 1.0f;

//! @brief 16 elements of codes, of fp4 32. `Casts`: codes of NaN and infinity mean what they are. Blocks have none: their
//!        scale is NaN.
template <Code C, bool Casts, int Elements>
inline void decode(const std::byte* src, Floats* out) noexcept {
  using F = typename C::Format;
  constexpr int kElements = numeric::CodeTraits<C>::kElements;
  constexpr std::uint32_t kSignShift = kElements == 2 ? 28 : 24;
  auto const* from = reinterpret_cast<const std::uint8_t*>(src);
  for (int p = 0; p < 4 * kElements; ++p, from += 4 / kElements) {
    Words codes;
    if constexpr (kElements == 2)
      codes = Words{from[0] & 15u, std::uint32_t{from[0]} >> 4, from[1] & 15u, std::uint32_t{from[1]} >> 4};
    else
      codes = Words{from[0], from[1], from[2], from[3]};
    Words const magnitude = codes & (F::kSign - 1), moved = magnitude << F::kShift,
                sign = (codes & F::kSign) << kSignShift;
    Words const normal = moved + (std::uint32_t{127 - F::kBias} << 23);
    Words const denormal =
        as<Words>(as<Floats>(moved + F::kSmallestNormal) - (Floats{} + __builtin_bit_cast(float, F::kSmallestNormal)));
    Words value = select(as<Words>(as<Ints>(magnitude) < (1 << F::kMantissa)), denormal, normal) | sign;
    if constexpr (Casts) {
      if constexpr (std::same_as<C, fp8_e4m3_fnuz>) {
        value = select(as<Words>(codes == 0x80u), Words{} + 0x7fc00000u, value);
      } else if constexpr (std::same_as<C, fp8_e4m3>) {
        value = select(as<Words>(magnitude == 0x7fu), 0x7fc00000u | sign, value);
      } else {
        value = select(as<Words>(magnitude == 0x7cu), 0x7f800000u | sign, value);
        value = select(as<Words>(as<Ints>(magnitude) > 0x7c), 0x7fc00000u | sign, value);
      }
    }
    out[p] = as<Floats>(value);
  }
}

#endif

//! @brief The bits of the largest magnitude of `count` elements of T, a multiple of 16, as an fp32.
template <Element T>
inline std::uint32_t largest_bits(const std::byte* src, std::size_t count) noexcept {
  constexpr std::size_t kEach = kVectorBytes / sizeof(T);
  std::uint32_t bits = 0;
  if constexpr (std::same_as<T, float>) {
    Ints largest{};
    for (std::size_t i = 0; i < count; i += kEach)
      largest = larger(largest, load<Ints>(src + i * sizeof(T)) & 0x7fffffff);
    for (std::size_t i = 0; i < kEach; ++i)
      bits = static_cast<std::uint32_t>(largest[i]) > bits ? static_cast<std::uint32_t>(largest[i]) : bits;
    return bits;
  } else {
    SignedHalves largest{};
    for (std::size_t i = 0; i < count; i += kEach) {
      SignedHalves const magnitudes = load<SignedHalves>(src + i * sizeof(T)) & 0x7fff;
      largest = magnitudes > largest ? magnitudes : largest;
    }
#if MORI_EP_ROW_BYTES == 32
    using Eight = std::int16_t __attribute__((vector_size(16), may_alias));
    Eight const a = as<Eight>(lower(as<Quads>(largest))), b = as<Eight>(upper(as<Quads>(largest)));
    Half least;
    asm("vphminposuw %1, %0" : "=x"(least) : "x"((a > b ? a : b) ^ 0x7fff));
    bits = 0x7fff - static_cast<std::uint16_t>(least[0]);
#else
    for (std::size_t i = 0; i < kEach; ++i)
      bits = static_cast<std::uint32_t>(largest[i]) > bits ? static_cast<std::uint32_t>(largest[i]) : bits;
#endif
    return numeric::float_bits(static_cast<float>(T::from_bits(static_cast<std::uint16_t>(bits))));
  }
}

#endif
