// SPDX-License-Identifier: MIT
//! @file Who does what in a launch: halves of a phase, runs of tokens, warps that share a row.
#pragma once

#include <cstdint>

#include "mori_ep/exec/attributes.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief Which halves of a phase a launch runs.
enum class Half : std::uint32_t { send = 1, recv = 2, both = 3 };
MORI_EP_HD constexpr bool has(Half halves, Half half) noexcept {
  return (static_cast<std::uint32_t>(halves) & static_cast<std::uint32_t>(half)) != 0;
}

//! @brief a / b for what is never negative: a GPU divides unsigned numbers in half the instructions.
MORI_EP_HD constexpr std::int32_t quotient(std::int32_t a, std::int32_t b) noexcept {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b));
}

//! @brief How `warps` warps of a block share tokens: groups of `parts` warps take every groups-th token, and the warps
//!        of a group share its row: `wanted` of them, more when there are too few tokens to use all.
struct WarpShare {
  std::int32_t group, groups, part, parts;
  //! @brief Warps left over (group >= groups) have no token.
  static MORI_EP_HD constexpr WarpShare of(std::int32_t warp, std::int32_t warps, std::int32_t tokens,
                                           std::int32_t wanted) noexcept {
    std::int32_t parts = wanted < warps ? wanted : warps;
    if (tokens > 0 && tokens * parts < warps) parts = quotient(warps, tokens);
    std::int32_t const group = quotient(warp, parts);
    return {group, quotient(warps, parts), warp - group * parts, parts};
  }
  //! @brief Every warp takes tokens alone.
  static MORI_EP_HD constexpr WarpShare alone(std::int32_t warp, std::int32_t warps) noexcept {
    return {warp, warps, 0, 1};
  }
};
static_assert(WarpShare::of(15, 16, 4, 1).group == 3 && WarpShare::of(15, 16, 4, 1).parts == 4);
static_assert(WarpShare::of(15, 16, 3, 1).group == 3 && WarpShare::of(15, 16, 3, 1).groups == 3);
static_assert(WarpShare::of(13, 14, 100, 28).parts == 14 && WarpShare::of(13, 14, 100, 28).groups == 1);

//! @brief This thread's number in its block, and how many there are.
template <class Ctx>
MORI_EP_HD std::int32_t thread(Ctx& ctx) {
  return ctx.warp() * Ctx::lanes + ctx.lane();
}
template <class Ctx>
MORI_EP_HD std::int32_t threads(Ctx& ctx) {
  return ctx.warps() * Ctx::lanes;
}

//! @brief Calls `body(i)` for each i in [0, n), shared out among the threads of the block, or the lanes of the warp.
template <class Ctx, class Body>
MORI_EP_HD void by_thread(Ctx& ctx, std::int32_t n, Body&& body) {
  MORI_EP_ROLLED
  for (std::int32_t i = thread(ctx); i < n; i += threads(ctx)) body(i);
}
template <class Ctx, class Body>
MORI_EP_HD void by_lane(Ctx& ctx, std::int32_t n, Body&& body) {
  MORI_EP_ROLLED
  for (std::int32_t i = ctx.lane(); i < n; i += Ctx::lanes) body(i);
}

}  // namespace mori_ep::schedule::intra_node
