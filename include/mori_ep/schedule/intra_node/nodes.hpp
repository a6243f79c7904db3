// SPDX-License-Identifier: MIT
//! @file Which ranks make a node, and which of them has to do with a source of another node.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "mori_ep/schedule/intra_node/work_split.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief Ranks 0 to world - 1 in nodes of `per`, side by side; the last may have fewer. What a source sends to another
//!        node, one rank there receives for all of it: the source's relay there, which has the source's index in its
//!        node, as far as there is one. So a relay serves up to `most` sources of each other node: it gives each a
//!        number.
struct Nodes {
  std::int32_t per = 1, world = 1;

  [[nodiscard]] MORI_EP_HD constexpr std::int32_t count() const noexcept { return quotient(world + per - 1, per); }
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t of(std::int32_t rank) const noexcept { return quotient(rank, per); }
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t first(std::int32_t node) const noexcept { return node * per; }
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t size(std::int32_t node) const noexcept {
    return first(node) + per <= world ? per : world - first(node);
  }
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t relay(std::int32_t source, std::int32_t node) const noexcept {
    return first(node) + (source - first(of(source))) % size(node);
  }

  //! @brief The number of `node` among the nodes that are not `own`.
  [[nodiscard]] static MORI_EP_HD constexpr std::int32_t other(std::int32_t node, std::int32_t own) noexcept {
    return node - (node > own ? 1 : 0);
  }

  [[nodiscard]] MORI_EP_HD constexpr std::int32_t most() const noexcept {
    std::int32_t const fewest = size(count() - 1);
    return quotient(per + fewest - 1, fewest);
  }
  //! @brief How many numbers a relay may give.
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t slots() const noexcept { return (count() - 1) * most(); }
  //! @brief The number that `source` has at its relay in `node`.
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t slot(std::int32_t source, std::int32_t node) const noexcept {
    std::int32_t const from = of(source);
    return other(from, node) * most() + quotient(source - first(from), size(node));
  }
  //! @brief The source that has number `slot` at `relay`, or -1.
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t source(std::int32_t slot, std::int32_t relay) const noexcept {
    std::int32_t const node = of(relay), at = quotient(slot, most()), from = at + (at >= node ? 1 : 0),
                       index = relay - first(node) + (slot - at * most()) * size(node);
    return index < size(from) ? first(from) + index : -1;
  }
};
static_assert([] {
  for (std::int32_t world : {1, 2, 5, 8, 9, 12})
    for (std::int32_t per = 1; per <= world; ++per) {
      Nodes const nodes{per, world};
      for (std::int32_t source = 0; source < world; ++source)
        for (std::int32_t node = 0; node < nodes.count(); ++node) {
          if (node == nodes.of(source)) continue;
          std::int32_t const relay = nodes.relay(source, node), slot = nodes.slot(source, node);
          if (nodes.of(relay) != node || slot < 0 || slot >= nodes.slots() || nodes.source(slot, relay) != source)
            return false;
          for (std::int32_t other = 0; other < source; ++other)
            if (nodes.of(other) != node && nodes.relay(other, node) == relay && nodes.slot(other, node) == slot)
              return false;
        }
      for (std::int32_t relay = 0; relay < world; ++relay)
        for (std::int32_t slot = 0; slot < nodes.slots(); ++slot)
          if (std::int32_t const source = nodes.source(slot, relay);
              source >= 0 && (nodes.relay(source, nodes.of(relay)) != relay || nodes.of(source) == nodes.of(relay)))
            return false;
    }
  return true;
}());

}  // namespace mori_ep::schedule::intra_node
