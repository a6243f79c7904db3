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

//! @brief One source's 16 bytes, widened and, if asked, weighted.
template <Element T, bool Weighted>
__device__ inline void term_of(const Vec16& v, float weight, float (&term)[kVectorElements<T>]) {
  widen<T>(v, term);
  if constexpr (Weighted) {
#pragma unroll
    for (int e = 0; e < kVectorElements<T>; ++e) term[e] = Target::product(term[e], weight);
  }
}

#if defined(__HIP__)
inline constexpr std::size_t kSumScratchPerWarp = 0;

//! @brief The sum of rows that are all one group. kAtOnce sources are loaded before the first is added: the loads are
//!        what takes time.
template <Element T, bool Weighted>
__device__ __forceinline__ void reduce_group(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                                             RowBytes bytes, int lane, int lanes, std::byte*) {
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
#else
inline constexpr int kPiecesInFlight = 10;  // 16 warps of a block have 80 KiB in flight, two blocks fit
inline constexpr std::size_t kSumScratchPerWarp = std::size_t{kPiecesInFlight} * Target::lanes * 16;

//! @brief The sum of rows that are all one group. The pieces of all sources, vector by vector, stream through a ring in
//!        shared memory: registers could not hold enough in flight. Each lane fills and reads slots of its own, so no
//!        lane waits for another. `ring` is the warp's.
template <Element T, bool Weighted>
__device__ inline void reduce_group(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                                    RowBytes bytes, int lane, int lanes, std::byte* ring) {
  constexpr int kElements = kVectorElements<T>;
  constexpr RowBytes kSlot = Target::lanes * 16;
  RowBytes const step = static_cast<RowBytes>(lanes) * 16;
  RowBytes at = static_cast<RowBytes>(lane) * 16;
  std::uint32_t const slots = Target::shared_address(ring) + static_cast<std::uint32_t>(Target::lane()) * 16;
  int ahead = 0;  // of the piece to be asked for next: source, place in the row, slot
  RowBytes ahead_at = at, ahead_slot = 0;
  auto const ask = [&] {
    if (ahead_at < bytes) {
      Target::copy_row_async(slots + ahead_slot, srcs[ahead] + ahead_at);
      if (++ahead == n) ahead = 0, ahead_at += step;
      ahead_slot = ahead_slot + kSlot == kPiecesInFlight * kSlot ? 0 : ahead_slot + kSlot;
    }
    Target::commit_copies();
  };
#pragma unroll 1
  for (int i = 0; i < kPiecesInFlight; ++i) ask();
#pragma unroll 1
  for (RowBytes slot = 0; at < bytes; at += step) {
    float sum[kElements], term[kElements];
    for (int i = 0; i < n; ++i) {
      Target::await_copies<kPiecesInFlight - 1>();
      term_of<T, Weighted>(Target::load_shared(slots + slot), Weighted ? weights[i] : 1.0f, term);
      slot = slot + kSlot == kPiecesInFlight * kSlot ? 0 : slot + kSlot;
      ask();
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[e] = i == 0 ? term[e] : sum[e] + term[e];
    }
    Target::store_row(dst + at, narrow<T>(sum));
  }
}
#endif

//! @brief The sum of groups, each summed by itself first: for worlds that are grouped into nodes.
template <Element T, bool Weighted>
__device__ MORI_EP_CALL void reduce_groups(const std::byte* const* srcs, const float* weights, int n,
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
__device__ __forceinline__ void reduce_rows(const std::byte* const* srcs, const float* weights, int n,
                                            std::uint32_t group_starts, std::byte* dst, RowBytes bytes, int lane,
                                            int lanes, std::byte* ring) {
  if ((group_starts & ~1u) == 0)
    reduce_group<T, Weighted>(srcs, weights, n, dst, bytes, lane, lanes, ring);
  else
    reduce_groups<T, Weighted>(srcs, weights, n, group_starts, dst, bytes, lane, lanes);
}

//! @brief A sum that keeps its fp32, in the order of the elements. A lane has the same elements in both.
template <Element T, bool Weighted>
__device__ MORI_EP_CALL void sum_rows(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                                      RowBytes bytes, int lane, int lanes) {
  constexpr int kElements = kVectorElements<T>;
  for (RowBytes at = static_cast<RowBytes>(lane) * 16; at < bytes; at += static_cast<RowBytes>(lanes) * 16) {
    float sum[kElements], term[kElements];
    for (int i = 0; i < n; ++i) {
      term_of<T, Weighted>(Target::load_row(srcs[i] + at), Weighted ? weights[i] : 1.0f, term);
#pragma unroll
      for (int e = 0; e < kElements; ++e) sum[e] = i == 0 ? term[e] : sum[e] + term[e];
    }
#pragma unroll
    for (int e = 0; e < kElements; e += 4)
      Target::store_row(dst + (at / sizeof(T) + static_cast<RowBytes>(e)) * sizeof(float),
                        narrow<float>({sum[e], sum[e + 1], sum[e + 2], sum[e + 3]}));
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
