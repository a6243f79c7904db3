// SPDX-License-Identifier: MIT
//! @file The arena of schedule::IntraNode: what lies where, and how much of it the contract itself needs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/comm/symmetric_layout.hpp"
#include "mori_ep/routing/route.hpp"
#include "mori_ep/schedule/config.hpp"
#include "mori_ep/schedule/intra_node/nodes.hpp"
#include "mori_ep/schedule/intra_node/relay_layout.hpp"
#include "mori_ep/schedule/intra_node/row_sizes.hpp"

namespace mori_ep::schedule::intra_node {

inline constexpr int kMaxBufferSets = 2;
inline constexpr int kTile = 32;        //!< tokens whose votes fit a word
inline constexpr int kMaxBlocks = 256;  //!< of a launch: each has a word of its own on every peer
inline constexpr int kFarPuts = 5;      //!< that bring a far rank's rows: payload, ids, weights, scales, positions
inline constexpr int kFarReturns = 2;   //!< that bring them back: rows, weights

//! @brief The near flags of a fault, in the arena.
struct FaultGate {
  std::uint32_t failed = 0;   //!< nonzero: kernels do nothing more
  std::uint32_t claimed = 0;  //!< the first to set it writes the record
};

//! @brief Which operand a kernel found wrong.
enum class Operand : std::uint32_t { none = 0, combine_rows, combine_weights, token_count };
constexpr const char* name(Operand operand) noexcept {
  switch (operand) {
    case Operand::none:
      return "";
    case Operand::combine_rows:
      return "combine input rows";
    case Operand::combine_weights:
      return "combine weights rows";
    case Operand::token_count:
      return "token_count";
  }
  return "";
}

//! @brief This rank's first fault, on its notice board; written by a kernel, read by the host.
struct FaultRecord {
  std::uint32_t failed = 0;  //!< published last: the rest is there
  std::uint32_t code = 0;    //!< Errc
  std::uint32_t phase = 0;   //!< Phase
  std::int32_t peer = -1;
  std::uint32_t expected = 0;
  std::uint32_t seen = 0;
  std::uint32_t operand = 0;  //!< Operand, for Errc::invalid_argument
  std::uint32_t reserved = 0;
  std::int64_t value = 0, limit = 0;
};

//! @brief Device-side state of one buffer set. `epoch` is the last dispatch's; kernels advance it, so a graph replays.
struct SetState {
  std::uint32_t epoch = 0;
  std::int32_t tokens = 0;           //!< how many tokens the last dispatch brought
  std::uint32_t combine_staged = 0;  //!< blocks of the running combine that have staged their rows
  std::uint32_t blocks_ended = 0;    //!< blocks of all launches on this set that have ended (Exec::kFreeWaits is false)
  std::uint32_t blocks_tallied = 0;  //!< blocks of the running dispatch that have counted their experts
  std::uint32_t parts_drawn = 0;     //!< parts of rows that the warps of the running dispatch have drawn
  std::uint32_t blocks_staged = 0;   //!< blocks of the running dispatch whose rows for other nodes are staged
  std::uint32_t combine_sent = 0;    //!< the epoch of the last combine that was sent to far ranks
  routing::RecvTotals totals;
};

//! @brief What a rank remembers of a far one between a dispatch and its combine. Far ranks are on other nodes: what goes
//!        there is staged here and put by the network, to where a near rank would have stored it.
struct FarPlace {
  std::uint32_t shift = 0;  //!< a row of ours there is staged at row + shift, and comes back to there (modulo 2^32)
  std::int32_t first = 0;   //!< of its rows here
  std::int32_t rows = 0;    //!< of it that are here
  std::uint32_t there = 0;  //!< where its rows that are here come back to
};

//! @brief The regions of one buffer set; [W] rows of what peers write are indexed by the writing rank. C columns: the
//!        ranks and, where there are relays, behind them the nodes.
struct SetLayout {
  // written by peers
  comm::Region counts;  //!< [2][W][C + 1] signal words, by epoch's parity: rows s sends to each column; its senders
  comm::Region rows_arrived;   //!< [W][kMaxBlocks] signal words: the rows that a block of s sends are here
  comm::Region combine_ready;  //!< [W] signal words: the combine rows of s may be read
  comm::Region expert_counts;  //!< [2][W][E_r + 1] the same: rows of s per local expert, dropped too; its invalid ids
  comm::Region recv_x;         //!< [R][H]
  comm::Region recv_weights;   //!< [R][K] fp32
  comm::Region recv_ids;       //!< [R][K] Index
  comm::Region recv_scales;    //!< [R][scale bytes]
  comm::Region recv_src_pos;   //!< [R] i32: src_rank * M + src_token
  // read by peers
  comm::Region combine_x;        //!< [R][H], or coded: the registered combine input
  comm::Region combine_weights;  //!< [R][K] fp32
  // this rank's own
  comm::Region state;  //!< SetState
  comm::Region
      routes;  //!< [M][min(K, W)] RouteEntry, as they are summed, then rank -1; W + n: node n's sum, its row there
  comm::Region route_weights;  //!< [M][min(K, W)] fp32, for reduce::WeightedSum: sums over that rank's experts
  comm::Region sent_ids;       //!< [M][K] Index: the ticket's own copy of its routing
  comm::Region sent_weights;   //!< [M][K] fp32
  comm::Region votes;          //!< [ceil(M / kTile)][C] signal words: which tokens of a tile go to each column, as bits
  comm::Region expert_tally;   //!< [E + 1] u32, zero between launches: rows by expert, invalid ids, of all blocks
  comm::Region senders;        //!< [W] u32: how many blocks of each rank sent rows here
  comm::Region expert_count;   //!< [E_r] i32: rows received per local expert
};

//! @brief The regions of one buffer set that serve far ranks. S = M * min(K, far ranks): the most copies that go far.
struct FarLayout {
  // written by the network
  comm::Region told;        //!< [2][W][2] signal words, by epoch's parity: the counts of s are here; its experts', too
  comm::Region ready;       //!< [W][kFarReturns] signal words: what comes back from s is here
  comm::Region in_x;        //!< [S][H]: what comes back
  comm::Region in_weights;  //!< [S][K] fp32
  // read by the network
  comm::Region words;    //!< [2][W][W + E_r + 2] what each far rank is told, by epoch's parity
  comm::Region x;        //!< [S][H] rows for far ranks, rank by rank, and what goes beside them
  comm::Region ids;      //!< [S][K] Index
  comm::Region weights;  //!< [S][K] fp32
  comm::Region scales;   //!< [S][scale bytes]
  comm::Region src_pos;  //!< [S] i32
  // this rank's own
  comm::Region places;  //!< [W] FarPlace

  //! @brief Nothing, where there is no network. With one, also when no rank is far: kernels keep places all the same.
  constexpr void add_signals(comm::LayoutBuilder& at, int world, const Network& network) noexcept {
    if (!network.far || network.relays) return;
    auto const w = static_cast<std::size_t>(world);
    told = at.add(4 * w, sizeof(std::uint64_t));
    ready = at.add(w * kFarReturns, sizeof(std::uint64_t));
  }
  constexpr void add_rows(comm::LayoutBuilder& at, const EpDispatchCombineConfig& c, int world, const RowSizes& row,
                          std::size_t index_bytes, const Network& network) noexcept {
    if (!network.far || network.relays) return;
    auto const far_ranks = static_cast<std::size_t>(world - network.nodes.size(network.nodes.count() - 1));
    auto const w = static_cast<std::size_t>(world), k = static_cast<std::size_t>(c.num_experts_per_token);
    auto const copies = static_cast<std::size_t>(c.max_num_inp_token_per_rank) * std::min(k, far_ranks);
    words = at.add(2 * w * (w + static_cast<std::size_t>(c.num_experts_per_rank) + 2), sizeof(std::uint64_t));
    places = at.add(w, sizeof(FarPlace));
    x = at.add(copies, row.received);
    ids = at.add(copies, k * index_bytes);
    weights = at.add(copies, k * sizeof(float));
    scales = at.add(copies, c.scale_bytes());
    src_pos = at.add(copies, sizeof(std::int32_t));
    in_x = at.add(copies, row.combined);
    in_weights = at.add(copies, k * sizeof(float));
  }
};
//! @brief What a kernel is given of it, where no rank is far.
struct NoFarLayout {};
template <class PeerRef>
using FarLayoutOf =
    std::conditional_t<PeerRef::kRelays, RelayLayout, std::conditional_t<PeerRef::kFar, FarLayout, NoFarLayout>>;

//! @brief The notice board of one rank: small, and host-visible on every machine.
struct BoardLayout {
  comm::Region record;   //!< FaultRecord
  comm::Region notices;  //!< [2][W] words: faults, written by peers; then, read by peers, for whom this rank waits long
  comm::Region totals;   //!< [kMaxBufferSets] RecvTotals, for a host that asks
  std::size_t bytes = 0;

  static constexpr BoardLayout make(int world) noexcept {
    comm::LayoutBuilder at;
    BoardLayout out;
    out.record = at.add(1, sizeof(FaultRecord));
    out.notices = at.add(2 * static_cast<std::size_t>(world), sizeof(std::uint64_t));
    out.totals = at.add(kMaxBufferSets, sizeof(routing::RecvTotals));
    out.bytes = at.bytes();
    return out;
  }
};

//! @brief The whole arena.
struct Layout {
  comm::Region gate;         //!< FaultGate
  comm::Region bases;        //!< [W] arena addresses
  comm::Region board_bases;  //!< [W] notice board addresses
  SetLayout sets[kMaxBufferSets];
  FarLayout far[kMaxBufferSets];
  RelayLayout relay[kMaxBufferSets];
  std::size_t bytes = 0;
  std::size_t contract_bytes = 0;  //!< received rows with weights, ids, scales and positions, and the combine rows
  std::size_t signal_bytes = 0;    //!< the signals that a network writes end before
  std::size_t largest_put = 0;     //!< bytes, of a network
  bool overflow = false;
  std::int32_t routes_per_token = 1;
  std::int32_t columns = 1;  //!< of counts and votes

  static constexpr Layout make(const EpDispatchCombineConfig& c, int world, const RowSizes& row,
                               std::size_t index_bytes, const Network& network = {}) noexcept {
    auto const w = static_cast<std::size_t>(world), columns = static_cast<std::size_t>(network.columns(world));
    auto const k = static_cast<std::size_t>(c.num_experts_per_token);
    auto const rows = static_cast<std::size_t>(c.recv_capacity(world));
    auto const local_experts = static_cast<std::size_t>(c.num_experts_per_rank);
    auto const routes = std::min(k, w);
    comm::LayoutBuilder at;
    Layout out;
    out.routes_per_token = static_cast<std::int32_t>(routes);
    out.columns = network.columns(world);
    out.gate = at.add(1, sizeof(FaultGate));
    out.bases = at.add(w, sizeof(std::byte*));
    out.board_bases = at.add(w, sizeof(std::byte*));
    // Signals first: a command reaches less far with them than with rows.
    for (int i = 0; i < c.num_buffer_sets; ++i) {
      SetLayout& set = out.sets[i];
      set.counts = at.add(2 * w * (columns + 1), sizeof(std::uint64_t));
      set.rows_arrived = at.add(w * kMaxBlocks, sizeof(std::uint64_t));
      set.combine_ready = at.add(w, sizeof(std::uint64_t));
      set.expert_counts = at.add(2 * w * (local_experts + 1), sizeof(std::uint64_t));
      out.far[i].add_signals(at, world, network);
      out.relay[i].add_signals(at, c, world, row, index_bytes, network);
    }
    out.signal_bytes = at.bytes();
    for (int i = 0; i < c.num_buffer_sets; ++i) {
      SetLayout& set = out.sets[i];
      set.state = at.add(1, sizeof(SetState));
      set.votes = at.add(columns * ((static_cast<std::size_t>(c.max_num_inp_token_per_rank) + kTile - 1) / kTile),
                         sizeof(std::uint64_t));
      set.expert_tally = at.add(w * local_experts + 1, sizeof(std::uint32_t));
      set.senders = at.add(w, sizeof(std::uint32_t));
      set.expert_count = at.add(local_experts, sizeof(std::int32_t));
      set.routes = at.add(static_cast<std::size_t>(c.max_num_inp_token_per_rank) * routes, sizeof(routing::RouteEntry));
      set.route_weights = at.add(static_cast<std::size_t>(c.max_num_inp_token_per_rank) * routes, sizeof(float));
      set.sent_ids = at.add(static_cast<std::size_t>(c.max_num_inp_token_per_rank) * k, index_bytes);
      set.sent_weights = at.add(static_cast<std::size_t>(c.max_num_inp_token_per_rank) * k, sizeof(float));
      set.recv_x = at.add(rows, row.received);
      set.recv_weights = at.add(rows, k * sizeof(float));
      set.recv_ids = at.add(rows, k * index_bytes);
      set.recv_scales = at.add(rows, c.scale_bytes());
      set.recv_src_pos = at.add(rows, sizeof(std::int32_t));
      set.combine_x = at.add(rows, row.combined);
      set.combine_weights = at.add(rows, k * sizeof(float));
      out.far[i].add_rows(at, c, world, row, index_bytes, network);
      out.relay[i].add_rows(at, c, row, network);
      out.contract_bytes += set.recv_x.bytes + set.recv_weights.bytes + set.recv_ids.bytes + set.recv_scales.bytes +
                            set.recv_src_pos.bytes + set.combine_x.bytes + set.combine_weights.bytes;
    }
    out.bytes = at.bytes();
    out.overflow = at.overflow();
    if (network.relays)
      out.largest_put = static_cast<std::size_t>(out.relay[0].chunk) *
                        std::max(out.relay[0].record.bytes, out.relay[0].record.back_bytes);
    else if (network.far)
      out.largest_put = static_cast<std::size_t>(c.max_num_inp_token_per_rank) *
                        std::max({row.received, row.combined, k * index_bytes, k * sizeof(float), c.scale_bytes()});
    return out;
  }
};

}  // namespace mori_ep::schedule::intra_node
