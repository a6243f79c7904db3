// SPDX-License-Identifier: MIT
//! @file What ranks tell each other before their queue pairs are connected, and what must agree.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "mori_ep/comm/hash.hpp"
#include "mori_ep/fabric/verbs/address.hpp"
#include "mori_ep/fabric/verbs/trouble.hpp"

namespace mori_ep::fabric::verbs {

//! @brief One rank's side, or what went wrong there.
struct Card {
  //! Changes with this struct and with what is written to arenas.
  static constexpr std::uint64_t kCheck =
      comm::hash_number(std::endian::native == std::endian::little, comm::hash_text("mori_ep fabric::Verbs 2"));

  std::uint64_t check = kCheck;
  Trouble trouble;
  std::uint64_t arena_base = 0, arena_bytes = 0, board_base = 0;
  std::uint32_t arena_key = 0, board_key = 0;  //!< rkeys
  std::uint32_t first_psn = 0;
  std::int32_t num_qp_per_pe = 0;
  std::int32_t mtu = 0;
  std::uint16_t lid = 0;
  bool ethernet = false, needs_grh = false;
  GidKind gid_kind = GidKind::infiniband;
  GidBytes gid{};
};
static_assert(std::is_trivially_copyable_v<Card>);

//! @brief The first rank's trouble, or the first rank whose card does not go with rank 0's: the same on every rank.
[[nodiscard]] inline Trouble agree(std::span<const Card> cards) {
  int rank = 0;
  for (const Card& card : cards) {
    auto const differs = [&](Step step, std::int64_t value, std::int64_t limit) {
      return Trouble{.step = step, .rank = rank, .peer = 0, .value = value, .limit = limit};
    };
    const Card& first = cards.front();
    if (card.check != first.check)
      return differs(Step::same_version, static_cast<std::int64_t>(card.check), static_cast<std::int64_t>(first.check));
    if (card.trouble) {
      Trouble trouble = card.trouble;
      trouble.rank = rank;
      return trouble;
    }
    ++rank;
  }
  rank = 0;
  for (const Card& card : cards) {
    const Card& first = cards.front();
    auto const network = [](const Card& c) { return c.ethernet ? name(c.gid_kind) : "InfiniBand"; };
    if (card.num_qp_per_pe != first.num_qp_per_pe)
      return Trouble{.step = Step::same_queue_pairs,
                     .rank = rank,
                     .peer = 0,
                     .value = card.num_qp_per_pe,
                     .limit = first.num_qp_per_pe};
    if (card.ethernet != first.ethernet || (card.ethernet && card.gid_kind != first.gid_kind))
      return Trouble{.step = Step::same_network, .rank = rank, .peer = 0}.with_text(std::string(network(card)) +
                                                                                    " beside " + network(first));
    ++rank;
  }
  return {};
}

//! @brief The largest packet that both ends of a path take.
[[nodiscard]] constexpr int path_mtu(const Card& a, const Card& b) noexcept { return std::min(a.mtu, b.mtu); }

//! @brief Must packets from `a` to `b` carry GIDs? Always over Ethernet; on InfiniBand where the way leads through a
//!        router, or a port asks for it.
[[nodiscard]] constexpr bool needs_gids(const Card& a, const Card& b) noexcept {
  return a.ethernet || a.needs_grh || b.needs_grh || !std::equal(a.gid.begin(), a.gid.begin() + 8, b.gid.begin());
}

//! @brief The number of the first packet that a rank sends over a queue pair: random, and another on each, so that no
//!        packet of an earlier connection passes for one of this.
[[nodiscard]] constexpr std::uint32_t first_psn(const Card& from, int to, int queue_pair) noexcept {
  return static_cast<std::uint32_t>(
             comm::hash_number(static_cast<std::uint64_t>(to) << 8 | static_cast<unsigned>(queue_pair),
                               comm::hash_number(from.first_psn))) &
         0xffffffu;
}

}  // namespace mori_ep::fabric::verbs
