// SPDX-License-Identifier: MIT
//! @file The route rule: which ranks a token goes to. The one function every schedule asks.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "mori_ep/exec/attributes.hpp"

namespace mori_ep::routing {

//! @brief An expert id as routers produce them.
template <class I>
concept IndexType = std::same_as<I, std::int32_t> || std::same_as<I, std::int64_t>;

inline constexpr std::int32_t kMaxTopk = 32;  //!< K's limit: a token's destinations fit one warp and one mask
inline constexpr std::int64_t kNoExpert = -1;

inline constexpr std::int64_t kMaxExperts = 8192;  //!< of a world: their counters live in a block's scratch

//! @brief Ranks that are left out, as bits: none, or some of the first 64.
[[nodiscard]] MORI_EP_HD constexpr bool is_absent(std::uint64_t absent, std::int32_t rank) noexcept {
  return absent != 0 && ((absent >> (rank & 63)) & 1) != 0;
}

//! @brief Where experts live: expert e on rank e / experts_per_rank. No token goes to a rank that is left out.
class Placement {
 public:
  constexpr Placement() noexcept = default;
  MORI_EP_HD constexpr Placement(std::int32_t world, std::int32_t experts_per_rank, std::uint64_t absent = 0) noexcept
      : absent_(absent),
        world_(world),
        experts_(static_cast<std::uint32_t>(world) * static_cast<std::uint32_t>(experts_per_rank)),
        experts_per_rank_(experts_per_rank),
        reciprocal_(((std::uint32_t{1} << 31) + static_cast<std::uint32_t>(experts_per_rank) - 1) /
                    static_cast<std::uint32_t>(experts_per_rank)) {}

  [[nodiscard]] MORI_EP_HD constexpr std::int32_t world() const noexcept { return world_; }
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t experts_per_rank() const noexcept { return experts_per_rank_; }
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t experts() const noexcept {
    return static_cast<std::int32_t>(experts_);
  }
  //! @brief The rank that hosts `id`, or -1 when there is none: kNoExpert, outside [0, experts), or left out.
  //! Twice the id times 2^31 / E_r rounded up, of which the upper half is the exact quotient while id * E_r < 2^31,
  //! which kMaxExperts ensures: one instruction of a GPU.
  template <IndexType Index>
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t rank_of(Index id) const noexcept {
    if (static_cast<std::make_unsigned_t<Index>>(id) >= experts_) return -1;
    auto const rank =
        static_cast<std::int32_t>((std::uint64_t{2 * static_cast<std::uint32_t>(id)} * reciprocal_) >> 32);
    return is_absent(absent_, rank) ? -1 : rank;
  }

 private:
  std::uint64_t absent_ = 0;
  std::int32_t world_ = 1;
  std::uint32_t experts_ = 1;
  std::int32_t experts_per_rank_ = 1;
  std::uint32_t reciprocal_ = std::uint32_t{1} << 31;
};
static_assert([] {
  for (std::int32_t per_rank : {1, 3, 7, 32, 1000, 8192})
    for (std::int32_t id = 0; id < 8192 / per_rank * per_rank; ++id)
      if (Placement(8192 / per_rank, per_rank).rank_of(id) != id / per_rank) return false;
  if (Placement(3, 2, 0b010).rank_of(1) != 0 || Placement(3, 2, 0b010).rank_of(2) != -1 ||
      Placement(3, 2, 0b010).rank_of(5) != 2)
    return false;
  return Placement(2, 3).rank_of(-1) == -1 && Placement(2, 3).rank_of(6) == -1 &&
         Placement(2, 3).rank_of(std::int64_t{1} << 40) == -1;
}());

//! @brief How many bits are set.
[[nodiscard]] MORI_EP_HD constexpr std::int32_t count_bits(std::uint64_t bits) noexcept {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __popcll(bits);
#else
  // Added up pairwise, in fewer steps than the call that the builtin is on a plain x86-64.
  bits -= (bits >> 1) & 0x5555555555555555u;
  bits = (bits & 0x3333333333333333u) + ((bits >> 2) & 0x3333333333333333u);
  bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return static_cast<std::int32_t>((bits * 0x0101010101010101u) >> 56);
#endif
}
[[nodiscard]] MORI_EP_HD constexpr std::int32_t count_bits(std::uint32_t bits) noexcept {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  return __popc(bits);
#else
  return count_bits(std::uint64_t{bits});
#endif
}
//! @brief The lowest `n` bits; none for negative n, all from 64 on.
[[nodiscard]] MORI_EP_HD constexpr std::uint64_t low_bits(std::int32_t n) noexcept {
  return n <= 0 ? 0 : n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
}
static_assert(low_bits(-1) == 0 && low_bits(3) == 7 && low_bits(64) == ~std::uint64_t{0});

//! @brief Is `id` among the first `n` ids of a token? Counts of rows per expert use it, so that an expert named twice
//!        still gets one row.
template <IndexType Index>
[[nodiscard]] MORI_EP_HD constexpr bool named_before(const Index* ids, std::int32_t n, Index id) noexcept {
  MORI_EP_ROLLED
  for (std::int32_t j = 0; j < n; ++j)
    if (ids[j] == id) return true;
  return false;
}

//! @brief A received row's source: which rank, and which of its tokens.
struct SourcePos {
  std::int32_t rank;
  std::int32_t token;
  friend constexpr bool operator==(const SourcePos&, const SourcePos&) noexcept = default;
};
//! @brief `src_rank * M + src_token`, M = max_num_inp_token_per_rank; MORI's name for taking it apart again.
[[nodiscard]] MORI_EP_HD constexpr SourcePos decode_send_flat_idx(std::int32_t flat,
                                                                  std::int32_t max_num_inp_token_per_rank) noexcept {
  return {flat / max_num_inp_token_per_rank, flat % max_num_inp_token_per_rank};
}

//! @brief One copy of a token: the rank it went to and its row there. Ranks from the world's size on are nodes, for
//!        schedules that send them one copy.
struct alignas(8) RouteEntry {
  std::int32_t rank = -1;  //!< -1 ends a token's list
  std::int32_t row = 0;
};

//! @brief What a rank received in a dispatch.
struct RecvTotals {
  std::int32_t recv_count = 0;  //!< rows [0, recv_count) are there
  std::int32_t reserved = 0;
  std::int64_t total = 0;        //!< rows that were routed here
  std::int64_t dropped = 0;      //!< total - recv_count: rows past the capacity
  std::int64_t invalid_ids = 0;  //!< of this rank's own tokens: ids that are neither an expert nor kNoExpert
};

}  // namespace mori_ep::routing
