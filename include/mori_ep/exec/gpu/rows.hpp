// SPDX-License-Identifier: MIT
//! @file The row primitives on a GPU: a warp moves a row in 16-byte vectors, several in flight per lane.
#pragma once

#include "mori_ep/exec/gpu/target.hpp"

#if defined(MORI_EP_GPU)

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/exec/gpu/codes.hpp"
#include "mori_ep/numeric/coded_row.hpp"
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

//! @brief Lane `lane` of `lanes` moves every `lanes`-th vector; InFlight of them are loaded before the first is stored.
template <RowBytes InFlight, class Place>
__device__ __forceinline__ void multicast_vectors(const std::byte* src, std::byte* const* dst, Place&& place,
                                                  RowBytes bytes, int lane, int lanes) {
  auto const step = static_cast<RowBytes>(lanes) * 16;
  RowBytes at = static_cast<RowBytes>(lane) * 16;
  Vec16 v[InFlight];
  auto const load = [&] {
#pragma unroll
    for (RowBytes i = 0; i < InFlight; ++i)
      if (at + i * step < bytes) v[i] = Target::load_row(src + at + i * step);
  };
  load();
  int const n = place();
  while (at < bytes) {
#pragma unroll 1
    for (int d = 0; d < n; ++d) {
      std::byte* to = dst[d] + at;
#pragma unroll
      for (RowBytes i = 0; i < InFlight; ++i)
        if (at + i * step < bytes) Target::store_row(to + i * step, v[i]);
    }
    at += InFlight * step;
    load();
  }
}

//! @brief A warp alone needs many vectors in flight; many warps of a row have one or two each.
template <class Place>
__device__ __forceinline__ void multicast_row(const std::byte* src, std::byte* const* dst, Place&& place,
                                              RowBytes bytes, int lane, int lanes) {
  if (bytes > static_cast<RowBytes>(lanes) * 32)
    multicast_vectors<4>(src, dst, place, bytes, lane, lanes);
  else
    multicast_vectors<2>(src, dst, place, bytes, lane, lanes);
}

//! @brief What a lane reads of a row at one time: kElements in kBytes, and the word with their scale if they are codes.
template <RowForm R>
struct Piece {
  using T = RowElement<R>;
  static constexpr int kElements = kVectorElements<T>, kBytes = 16;
  static constexpr bool kScaled = false;
  static constexpr RowBytes kGrowth = 1;  // from bytes there to bytes of T
  Vec16 codes;

  static __device__ __forceinline__ Piece of(const std::byte* row, RowBytes at, RowBytes) {
    return {Target::load_row(row + at)};
  }
  __device__ __forceinline__ void widen_to(float (&out)[kElements], RowBytes) const { widen<T>(codes, out); }
};
template <CodedRowType R>
struct Piece<R> {
  using T = RowElement<R>;
  using C = typename R::CodeType;
  static constexpr int kElements = 8, kBytes = kElements / R::Traits::kElements;  // more would not fit registers
  static constexpr bool kScaled = R::kScaled;
  static constexpr RowBytes kGrowth = kElements * sizeof(T) / kBytes;
  std::conditional_t<kBytes == 8, Vec8, Vec4> codes;
  std::uint32_t scale;

  [[nodiscard]] static __device__ RowBytes block_of(RowBytes at) {
    return at / (kScaled ? static_cast<RowBytes>(R::kBlock) / R::Traits::kElements : 1u);
  }
  //! The four aligned bytes that hold the scale of what lies at `at`; scales begin at `payload`.
  [[nodiscard]] static __device__ RowBytes scale_at(RowBytes at, RowBytes payload) {
    return payload + block_of(at) * static_cast<RowBytes>(sizeof(typename R::ScaleType)) / 4 * 4;
  }
  static __device__ __forceinline__ Piece of(const std::byte* row, RowBytes at, RowBytes payload) {
    Piece piece;
    if constexpr (kBytes == 8)
      piece.codes = Target::load_row_half(row + at);
    else
      piece.codes = {{Target::load(reinterpret_cast<const std::uint32_t*>(row + at))}};
    piece.scale = kScaled ? Target::load(reinterpret_cast<const std::uint32_t*>(row + scale_at(at, payload))) : 0;
    return piece;
  }
  __device__ __forceinline__ void widen_to(float (&out)[kElements], RowBytes at) const {
#pragma unroll
    for (int i = 0; i < kBytes / 4; ++i) decode_word<C>(codes.word[i], out + i * (kElements * 4 / kBytes));
    if constexpr (kScaled) {
      float const factor = scale_in<R>(scale, block_of(at));
#pragma unroll
      for (int e = 0; e < kElements; ++e) out[e] = Target::product(out[e], factor);
    }
  }
};

//! @brief One source's piece in fp32 and, if asked, weighted. `at`: where in the row it lies.
template <RowForm R, bool Weighted>
__device__ __forceinline__ void term_of(const Piece<R>& piece, RowBytes at, float weight,
                                        float (&term)[Piece<R>::kElements]) {
  piece.widen_to(term, at);
  if constexpr (Weighted) {
#pragma unroll
    for (int e = 0; e < Piece<R>::kElements; ++e) term[e] = Target::product(term[e], weight);
  }
}

//! @brief A sum, rounded to T, to where it belongs.
template <Element T, int Elements>
__device__ __forceinline__ void store_sum(std::byte* dst, const float (&sum)[Elements]) {
  constexpr int kEach = kVectorElements<T>;
#pragma unroll
  for (int first = 0; first < Elements; first += kEach) {
    float part[kEach];
#pragma unroll
    for (int e = 0; e < kEach; ++e) part[e] = sum[first + e];
    Target::store_row(dst + first * static_cast<int>(sizeof(T)), narrow<T>(part));
  }
}

#if defined(__HIP__)
inline constexpr std::size_t kSumScratchPerWarp = 0;

//! @brief The sum of rows that are all one group. kAtOnce sources are loaded before the first is added: the loads are
//!        what takes time.
template <RowForm R, bool Weighted>
__device__ __forceinline__ void reduce_group(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                                             RowBytes bytes, int lane, int lanes, std::byte*) {
  using P = Piece<R>;
  constexpr int kAtOnce = 8, kElements = P::kElements;
  constexpr RowBytes kBytes = P::kBytes;
  for (RowBytes at = static_cast<RowBytes>(lane) * kBytes; at < bytes; at += static_cast<RowBytes>(lanes) * kBytes) {
    float sum[kElements], term[kElements];
    for (int first = 0; first < n; first += kAtOnce) {
      P piece[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        if (first + i < n) piece[i] = P::of(srcs[first + i], at, bytes);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= n) break;
        term_of<R, Weighted>(piece[i], at, Weighted ? weights[first + i] : 1.0f, term);
#pragma unroll
        for (int e = 0; e < kElements; ++e) sum[e] = i == 0 && first == 0 ? term[e] : sum[e] + term[e];
      }
    }
    store_sum<RowElement<R>>(dst + at * P::kGrowth, sum);
  }
}
#else
inline constexpr std::size_t kSumScratchPerWarp = std::size_t{10} * Target::lanes * 16;

//! @brief The ring of a warp's pieces on their way: as many as its scratch holds. Of plain rows 16 warps of a block have
//!        80 KiB in flight, and two blocks fit.
template <RowForm R>
struct Ring {
  using P = Piece<R>;
  static constexpr RowBytes kCodes = Target::lanes * P::kBytes, kSlot = kCodes + (P::kScaled ? Target::lanes * 4 : 0);
  static constexpr int kPieces = kSumScratchPerWarp / kSlot < 16 ? kSumScratchPerWarp / kSlot : 16;
  static constexpr RowBytes kBytes = kPieces * kSlot;
  std::uint32_t codes, scales;  // this lane's, of the first slot

  static __device__ Ring of(std::byte* scratch) {
    std::uint32_t const first = Target::shared_address(scratch);
    auto const lane = static_cast<std::uint32_t>(Target::lane());
    return {first + lane * P::kBytes, first + kCodes + lane * 4};
  }
  __device__ __forceinline__ void ask(RowBytes slot, const std::byte* row, RowBytes at, RowBytes payload) const {
    if constexpr (P::kBytes == 16)
      Target::copy_row_async(codes + slot, row + at);
    else
      Target::copy_piece_async<P::kBytes>(codes + slot, row + at);
    if constexpr (P::kScaled) Target::copy_piece_async<4>(scales + slot, row + P::scale_at(at, payload));
  }
  [[nodiscard]] __device__ __forceinline__ P get(RowBytes slot) const {
    P piece;
    if constexpr (P::kBytes == 16)
      piece.codes = Target::load_shared(codes + slot);
    else if constexpr (P::kBytes == 8)
      piece.codes = Target::load_shared_half(codes + slot);
    else
      piece.codes = {{Target::load_shared_word(codes + slot)}};
    if constexpr (P::kScaled) piece.scale = Target::load_shared_word(scales + slot);
    return piece;
  }
};

//! @brief The sum of rows that are all one group. The pieces of all sources, vector by vector, stream through a ring in
//!        shared memory: registers could not hold enough in flight. Each lane fills and reads slots of its own, so no
//!        lane waits for another. `scratch` is the warp's.
template <RowForm R, bool Weighted>
__device__ inline void reduce_group(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                                    RowBytes bytes, int lane, int lanes, std::byte* scratch) {
  using P = Piece<R>;
  using Slots = Ring<R>;
  constexpr int kElements = P::kElements;
  RowBytes const step = static_cast<RowBytes>(lanes) * P::kBytes;
  RowBytes at = static_cast<RowBytes>(lane) * P::kBytes;
  Slots const ring = Slots::of(scratch);
  int ahead = 0;  // of the piece to be asked for next: source, place in the row, slot
  RowBytes ahead_at = at, ahead_slot = 0;
  auto const ask = [&] {
    if (ahead_at < bytes) {
      ring.ask(ahead_slot, srcs[ahead], ahead_at, bytes);
      if (++ahead == n) ahead = 0, ahead_at += step;
      ahead_slot = ahead_slot + Slots::kSlot == Slots::kBytes ? 0 : ahead_slot + Slots::kSlot;
    }
    Target::commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < Slots::kPieces; ++i) ask();
#pragma unroll 1
  for (RowBytes slot = 0; at < bytes; at += step) {
    float sum[kElements], term[kElements];
    for (int i = 0; i < n; ++i) {
      Target::await_copies<Slots::kPieces - 1>();
      term_of<R, Weighted>(ring.get(slot), at, Weighted ? weights[i] : 1.0f, term);
      slot = slot + Slots::kSlot == Slots::kBytes ? 0 : slot + Slots::kSlot;
      ask();
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[e] = i == 0 ? term[e] : sum[e] + term[e];
    }
    store_sum<RowElement<R>>(dst + at * P::kGrowth, sum);
  }
}
#endif

//! @brief The sum of groups, each summed by itself first: for worlds that are grouped into nodes.
template <RowForm R, bool Weighted>
__device__ MORI_EP_CALL void reduce_groups(const std::byte* const* srcs, const float* weights, int n,
                                           std::uint32_t group_starts, std::byte* dst, RowBytes bytes, int lane,
                                           int lanes) {
  using P = Piece<R>;
  constexpr int kElements = P::kElements;
  constexpr RowBytes kBytes = P::kBytes;
  for (RowBytes at = static_cast<RowBytes>(lane) * kBytes; at < bytes; at += static_cast<RowBytes>(lanes) * kBytes) {
    float group[kElements], total[kElements], term[kElements];
    bool closed = false;  // is an earlier group already in `total`?
    term_of<R, Weighted>(P::of(srcs[0], at, bytes), at, Weighted ? weights[0] : 1.0f, group);
    for (int i = 1; i < n; ++i) {
      term_of<R, Weighted>(P::of(srcs[i], at, bytes), at, Weighted ? weights[i] : 1.0f, term);
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
    store_sum<RowElement<R>>(dst + at * P::kGrowth, group);
  }
}

//! @brief `bytes`: of a source row without its scales.
template <RowForm R, bool Weighted>
__device__ __forceinline__ void reduce_rows(const std::byte* const* srcs, const float* weights, int n,
                                            std::uint32_t group_starts, std::byte* dst, RowBytes bytes, int lane,
                                            int lanes, std::byte* ring) {
  if ((group_starts & ~1u) == 0)
    reduce_group<R, Weighted>(srcs, weights, n, dst, bytes, lane, lanes, ring);
  else
    reduce_groups<R, Weighted>(srcs, weights, n, group_starts, dst, bytes, lane, lanes);
}

//! @brief A sum that keeps its fp32, in the order of the elements. A lane has the same elements in both.
template <RowForm R, bool Weighted>
__device__ MORI_EP_CALL void sum_rows(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                                      RowBytes bytes, int lane, int lanes) {
  using P = Piece<R>;
  constexpr int kElements = P::kElements;
  constexpr RowBytes kBytes = P::kBytes;
  for (RowBytes at = static_cast<RowBytes>(lane) * kBytes; at < bytes; at += static_cast<RowBytes>(lanes) * kBytes) {
    float sum[kElements], term[kElements];
    for (int i = 0; i < n; ++i) {
      term_of<R, Weighted>(P::of(srcs[i], at, bytes), at, Weighted ? weights[i] : 1.0f, term);
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[e] = i == 0 ? term[e] : sum[e] + term[e];
    }
    store_sum<float>(dst + at * (kElements * static_cast<RowBytes>(sizeof(float)) / kBytes), sum);
  }
}
//! @brief The sum of such sums, rounded to T.
template <Element T>
__device__ MORI_EP_CALL void round_rows(const std::byte* const* srcs, int n, std::byte* dst, RowBytes bytes, int lane,
                                        int lanes) {
  constexpr int kElements = kVectorElements<T>;
  for (RowBytes at = static_cast<RowBytes>(lane) * 16; at < bytes; at += static_cast<RowBytes>(lanes) * 16) {
    float sum[kElements];
    for (int i = 0; i < n; ++i) {
#pragma unroll
      for (int e = 0; e < kElements; e += 4) {
        float term[4];
        widen<float>(Target::load_row(srcs[i] + (at / sizeof(T) + static_cast<RowBytes>(e)) * sizeof(float)), term);
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[e + j] = i == 0 ? term[j] : sum[e + j] + term[j];
      }
    }
    Target::store_row(dst + at, narrow<T>(sum));
  }
}

}  // namespace mori_ep::exec::gpu

#endif
