// SPDX-License-Identifier: MIT
//! @file The regions of a rank that relays, and that is relayed for: what crosses the network, and how it lies.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mori_ep/comm/symmetric_layout.hpp"
#include "mori_ep/schedule/config.hpp"
#include "mori_ep/schedule/intra_node/nodes.hpp"
#include "mori_ep/schedule/intra_node/row_sizes.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief What relays send back.
enum class SumForm : std::uint8_t { elements, fp32, codes };

//! @brief How the ranks of a world are joined.
struct Network {
  bool far = false;  //!< may there be ranks that only a network reaches?
  Nodes nodes;       //!< of ranks that load and store reach
  bool relays = false;
  SumForm sums = SumForm::elements;
  bool own_first = false;  //!< a rank sums the rows of its own node first, apart
  bool weighted = false;   //!< relays weight rows

  //! @brief The ranks and, where there are relays, the nodes.
  [[nodiscard]] constexpr int columns(int world) const noexcept { return world + (relays ? nodes.count() : 0); }
};

//! @brief A copy of a token on its way to a node, and what comes back for it: offsets in bytes, all in one run so that a
//!        chunk of them is one put.
struct RecordLayout {
  std::size_t ids = 0;           //!< [K] Index; behind the row [H]
  std::size_t weights = 0;       //!< [K] fp32
  std::size_t rows = 0;          //!< [ranks of a node] i32: the row that each keeps of it, -1: none
  std::size_t source = 0;        //!< i32: src_rank * M + src_token
  std::size_t carries = 0;       //!< u32, kWeights and kScales
  std::size_t scales = 0;        //!< [scale bytes]
  std::size_t bytes = 0;         //!< from one record to the next
  std::size_t back_weights = 0;  //!< of a sum: [K] fp32, behind the row [H]
  std::size_t back_bytes = 0;    //!< from one sum to the next

  enum Carries : std::uint32_t { kWeights = 1, kScales = 2 };

  static constexpr RecordLayout make(const EpDispatchCombineConfig& c, int ranks_of_node, std::size_t row_bytes,
                                     std::size_t back_row_bytes, std::size_t index_bytes) noexcept {
    constexpr std::size_t kWord = sizeof(std::int32_t);
    auto const rounded = [](std::size_t bytes) { return (bytes + 15) / 16 * 16; };
    auto const k = static_cast<std::size_t>(c.num_experts_per_token);
    RecordLayout out;
    out.ids = row_bytes;
    out.weights = out.ids + k * index_bytes;
    out.rows = out.weights + k * sizeof(float);
    out.source = out.rows + static_cast<std::size_t>(ranks_of_node) * kWord;
    out.carries = out.source + kWord;
    out.scales = out.carries + kWord;
    out.bytes = rounded(out.scales + c.scale_bytes());
    out.back_weights = back_row_bytes;
    out.back_bytes = rounded(back_row_bytes + k * sizeof(float));
    return out;
  }
};

//! @brief The regions of one buffer set where relays serve far ranks. N nodes, S slots of a relay (Nodes::slots), chunks
//!        of a source: ceil(M / chunk); copies of a source: M * min(K, N - 1).
struct RelayLayout {
  Nodes nodes;
  RecordLayout record;
  std::int32_t chunk = 1;   //!< records of a put
  std::int32_t chunks = 0;  //!< of a source to a node, at most
  // written by the network
  comm::Region told;      //!< as FarLayout's
  comm::Region arrived;   //!< [S][chunks] signal words: those records of a source are here
  comm::Region ready;     //!< [N][chunks] signal words: those sums of a node are here
  comm::Region in;        //!< [S][M] records
  comm::Region returned;  //!< [N - 1][M] sums, by the other node: a late one of a node cannot fall on another's
  // read by the network
  comm::Region words;  //!< [2][W][C + E_r + 2] what each far rank is told, by epoch's parity
  comm::Region out;    //!< [copies] records, node by node
  comm::Region back;   //!< [S][M] sums
  // this rank's own
  comm::Region staged;    //!< [N][chunks] u32, zero between launches: parts of that chunk's records that are staged
  comm::Region summed;    //!< [S][chunks] u32, zero between launches: sums of that chunk that are there
  comm::Region relayed;   //!< [S] i32: records that a source has sent in the last dispatch
  comm::Region sent;      //!< [2][N] i32, by epoch's parity: records sent to each node
  comm::Region factors;   //!< [S][M][ranks of a node] fp32, for reduce::WeightedSum
  comm::Region own;       //!< [M] sums, where they are made apart (Network::own_first): of this rank's node
  comm::Region elements;  //!< [S][M][H] sums as elements, where they become codes; a warp's own between the two

  //! @brief Nothing, where there are no relays.
  constexpr void add_signals(comm::LayoutBuilder& at, const EpDispatchCombineConfig& c, int world, const RowSizes& row,
                             std::size_t index_bytes, const Network& network) noexcept {
    if (!network.relays) return;
    nodes = network.nodes;
    std::size_t const sum_bytes = network.sums == SumForm::fp32 ? static_cast<std::size_t>(c.hidden_dim) * sizeof(float)
                                  : network.sums == SumForm::codes ? row.combined
                                                                   : row.sum;
    record = RecordLayout::make(c, nodes.per, row.received, sum_bytes, index_bytes);
    chunk = c.rows_per_chunk(record.bytes);
    chunks = chunks_of(c.max_num_inp_token_per_rank);
    auto const w = static_cast<std::size_t>(world), n = static_cast<std::size_t>(nodes.count()),
               slots = static_cast<std::size_t>(nodes.slots()), each = static_cast<std::size_t>(chunks);
    told = at.add(4 * w, sizeof(std::uint64_t));
    arrived = at.add(slots * each, sizeof(std::uint64_t));
    ready = at.add(n * each, sizeof(std::uint64_t));
    words = at.add(2 * w * (w + n + static_cast<std::size_t>(c.num_experts_per_rank) + 2), sizeof(std::uint64_t));
    staged = at.add(n * each, sizeof(std::uint32_t));
    summed = at.add(slots * each, sizeof(std::uint32_t));
    relayed = at.add(slots, sizeof(std::int32_t));
    sent = at.add(2 * n, sizeof(std::int32_t));
  }
  constexpr void add_rows(comm::LayoutBuilder& at, const EpDispatchCombineConfig& c, const RowSizes& row,
                          const Network& network) noexcept {
    if (!network.relays) return;
    auto const m = static_cast<std::size_t>(c.max_num_inp_token_per_rank),
               slots = static_cast<std::size_t>(nodes.slots());
    std::size_t const copies =
        m * std::min(static_cast<std::size_t>(c.num_experts_per_token), static_cast<std::size_t>(nodes.count()) - 1);
    factors = at.add(network.weighted ? slots * m * static_cast<std::size_t>(nodes.per) : 0, sizeof(float));
    in = at.add(slots * m, record.bytes);
    out = at.add(copies, record.bytes);
    back = at.add(slots * m, record.back_bytes);
    returned = at.add(static_cast<std::size_t>(nodes.count() - 1) * m, record.back_bytes);
    own = at.add(network.own_first && slots > 0 ? m : 0, record.back_bytes);
    elements = at.add(network.sums == SumForm::codes ? slots * m : 0, row.sum);
  }

  //! @brief How many chunks so many records make.
  [[nodiscard]] MORI_EP_HD constexpr std::int32_t chunks_of(std::int32_t records) const noexcept {
    return quotient(records + chunk - 1, chunk);
  }
};

}  // namespace mori_ep::schedule::intra_node
