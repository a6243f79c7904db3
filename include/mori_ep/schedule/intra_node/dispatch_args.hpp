// SPDX-License-Identifier: MIT
//! @file What a dispatch kernel is given, and a block's scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/routing/route.hpp"
#include "mori_ep/schedule/intra_node/fault.hpp"
#include "mori_ep/schedule/intra_node/work_split.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief Operands: x [t, H], ids [t, K], weights [t, K] fp32 or none, scales [t, scale_bytes] or none; t is `tokens`, or
//!        what `token_count` holds when it is given.
template <class PeerRef, routing::IndexType Index>
struct DispatchArgs {
  FaultPort<PeerRef> port;
  SetLayout set;
  routing::Placement placement;
  std::int32_t topk, routes_per_token, max_tokens, capacity;
  Half halves;
  std::int32_t tokens;
  const std::int32_t* token_count;
  const std::byte* x;
  const Index* ids;
  const float* weights;
  const std::byte* scales;
  std::size_t x_stride, ids_stride, weights_stride, scales_stride;  // bytes, elements, elements, bytes
  std::size_t row_bytes, scale_bytes;

  [[nodiscard]] MORI_EP_HD const Index* ids_of(std::int32_t token) const {
    return ids + static_cast<std::size_t>(token) * ids_stride;
  }
  [[nodiscard]] MORI_EP_HD const std::byte* row_of(std::int32_t token) const {
    return x + static_cast<std::size_t>(token) * x_stride;
  }

  static constexpr std::int32_t kIdsAtOnce = 8;
  //! @brief Ids [first, first + kIdsAtOnce) of token t, kNoExpert past topk. All are read before the first is looked at:
  //!        on a GPU the reads are what takes time.
  template <class Ctx>
  MORI_EP_HD void read_ids(Ctx& ctx, std::int32_t t, std::int32_t first, Index (&id)[kIdsAtOnce]) const {
    struct alignas(16) Vector {
      Index id[16 / sizeof(Index)];
    };
    constexpr std::int32_t kEach = 16 / sizeof(Index);
    const Index* row = ids_of(t) + first;
    if (topk % kIdsAtOnce == 0 && reinterpret_cast<std::uintptr_t>(row) % 16 == 0) {
      Vector v[kIdsAtOnce / kEach];
      MORI_EP_UNROLL
      for (std::int32_t i = 0; i < kIdsAtOnce / kEach; ++i) v[i] = ctx.load(reinterpret_cast<const Vector*>(row) + i);
      MORI_EP_UNROLL
      for (std::int32_t i = 0; i < kIdsAtOnce; ++i) id[i] = v[i / kEach].id[i % kEach];
    } else {
      MORI_EP_UNROLL
      for (std::int32_t i = 0; i < kIdsAtOnce; ++i)
        id[i] = first + i < topk ? ctx.load(row + i) : static_cast<Index>(routing::kNoExpert);
    }
  }
  //! @brief The ranks of one window that token t goes to, as bits; none past the last token.
  template <class Ctx>
  [[nodiscard]] MORI_EP_CALL MORI_EP_HD std::uint64_t ranks_of(Ctx ctx, std::int32_t t, std::int32_t end,
                                                               std::int32_t window) const {
    std::uint64_t ranks = 0;
    MORI_EP_ROLLED
    for (std::int32_t first = 0; first < topk && t < end; first += kIdsAtOnce) {
      Index id[kIdsAtOnce];
      read_ids(ctx, t, first, id);
      MORI_EP_UNROLL
      for (std::int32_t k = 0; k < kIdsAtOnce; ++k) ranks |= routing::window_bit(placement.rank_of(id[k]), window);
    }
    return ranks;
  }

  //! @brief The words of `peer` that the blocks of `source` write.
  template <class Peers>
  [[nodiscard]] MORI_EP_HD std::uint64_t* rows_arrived(const Peers& peers, std::int32_t peer,
                                                       std::int32_t source) const {
    return peers.template at<std::uint64_t>(peer, set.rows_arrived) + static_cast<std::ptrdiff_t>(source) * kMaxBlocks;
  }
  //! @brief What `source` tells `peer` in `epoch`: its rows for each rank, then how many of its blocks send rows.
  template <class Peers>
  [[nodiscard]] MORI_EP_HD std::uint64_t* counts_of(const Peers& peers, std::int32_t peer, std::int32_t source,
                                                    std::uint32_t epoch) const {
    auto const world = static_cast<std::ptrdiff_t>(placement.world());
    return peers.template at<std::uint64_t>(peer, set.counts) + ((epoch % 2) * world + source) * (world + 1);
  }
  //! @brief What `source` tells `peer` in `epoch`: its rows for each expert of `peer`, then how many ids name nothing.
  template <class Peers>
  [[nodiscard]] MORI_EP_HD std::uint64_t* expert_counts_of(const Peers& peers, std::int32_t peer, std::int32_t source,
                                                           std::uint32_t epoch) const {
    auto const world = static_cast<std::ptrdiff_t>(placement.world());
    return peers.template at<std::uint64_t>(peer, set.expert_counts) +
           ((epoch % 2) * world + source) * (placement.experts_per_rank() + 1);
  }
};

//! @brief One copy of a token of the batch: the rank it goes to, the token's slot in the batch, and its row there.
struct Copy {
  std::uint16_t rank, slot;
  std::uint32_t row;
};

//! @brief A block's scratch during a dispatch.
template <class PeerRef>
struct DispatchScratch {
  enum Flag : std::int32_t {
    kStopped = 0,
    kUnheard,
    kInvalid,
    kInvalidTold,
    kReceived,
    kMissing,
    kDropped,
    kLast,
    kFlags
  };
  static constexpr std::int32_t kTile = 64;  // tokens whose votes fit a word

  PeerRef peers;            // through `table`
  std::byte** table;        // [W] arena bases
  std::uint32_t* flags;     // [kFlags]
  std::uint32_t* total;     // [W] rows of all tokens, by destination (when the blocks share the counting)
  std::uint32_t* before;    // [W] rows of earlier ranks and of tokens before the batch: its first row
  std::uint32_t* rows;      // [W] rows that each source sends here
  std::uint32_t* blocks;    // [W] how many blocks of each source send rows
  std::uint32_t* experts;   // [E] rows of all tokens, by expert
  std::uint32_t* received;  // [E_r] rows received, by local expert
  std::uint32_t* by_warp;   // [warps][W] rows of the tokens that each warp counted
  std::uint32_t* earlier;   // [warps][W] those before this block's tokens
  std::uint64_t* ranks;     // [windows][batch] the ranks each token goes to, as bits, 64 to a window
  std::uint64_t* voters;    // [tiles][W] which tokens of a tile go to each rank, as bits
  std::uint32_t* start;     // [tiles][W + 1] where each rank's copies start among those of a tile; how many there are
  Copy* copies;             // [tiles][kTile * K] the copies of a tile, rank by rank: neighbours have neighbouring rows
  std::byte** targets;      // [batch][K] the rows of each token, in ascending rank order
  routing::RouteEntry* routes;  // [batch][K] the same, for the ticket
  std::int32_t* count;          // [batch] how many

  //! @brief How many tokens a block places at once: their copies lie in its scratch.
  [[nodiscard]] static MORI_EP_HD constexpr std::int32_t batch_tokens(std::int32_t topk) noexcept {
    return topk <= 8 ? 128 : 1024 / topk;
  }
  [[nodiscard]] static MORI_EP_HD constexpr std::int32_t tiles(std::int32_t topk) noexcept {
    return (batch_tokens(topk) + kTile - 1) / kTile;
  }
  [[nodiscard]] static MORI_EP_HD constexpr std::int32_t windows(std::int32_t world) noexcept {
    return (world + 63) / 64;
  }
  [[nodiscard]] static constexpr std::size_t bytes(int world, int experts, int topk, int warps) noexcept {
    auto const w = static_cast<std::size_t>(world), n = static_cast<std::size_t>(warps),
               k = static_cast<std::size_t>(topk), batch = static_cast<std::size_t>(batch_tokens(topk)),
               t = static_cast<std::size_t>(tiles(topk)), v = static_cast<std::size_t>(windows(world));
    return w * sizeof(std::byte*) + sizeof(std::uint64_t) * (v * batch + t * w) + t * kTile * k * sizeof(Copy) +
           batch * (k * (sizeof(routing::RouteEntry) + sizeof(std::byte*)) + sizeof(std::int32_t)) +
           sizeof(std::uint32_t) * (kFlags + t * (w + 1) + w * (4 + 2 * n) + 2 * static_cast<std::size_t>(experts)) +
           192;
  }
  template <class Ctx>
  static MORI_EP_HD DispatchScratch carve(Ctx& ctx, const PeerRef& far, std::int32_t experts, std::int32_t topk) {
    auto const w = static_cast<std::size_t>(far.world), warps = static_cast<std::size_t>(ctx.warps()),
               k = static_cast<std::size_t>(topk), batch = static_cast<std::size_t>(batch_tokens(topk)),
               e = static_cast<std::size_t>(experts);
    DispatchScratch s;
    s.table = ctx.template shared<std::byte*>(w);
    s.peers = far.with_table(s.table);
    s.copies = ctx.template shared<Copy>(static_cast<std::size_t>(tiles(topk) * kTile) * k);
    s.routes = ctx.template shared<routing::RouteEntry>(batch * k);
    s.targets = ctx.template shared<std::byte*>(batch * k);
    s.ranks = ctx.template shared<std::uint64_t>(batch * static_cast<std::size_t>(windows(far.world)));
    s.voters = ctx.template shared<std::uint64_t>(w * static_cast<std::size_t>(tiles(topk)));
    s.start = ctx.template shared<std::uint32_t>((w + 1) * static_cast<std::size_t>(tiles(topk)));
    s.count = ctx.template shared<std::int32_t>(batch);
    s.flags = ctx.template shared<std::uint32_t>(kFlags);
    s.total = ctx.template shared<std::uint32_t>(4 * w);
    s.before = s.total + w;
    s.rows = s.before + w;
    s.blocks = s.rows + w;
    s.by_warp = ctx.template shared<std::uint32_t>(2 * warps * w);
    s.earlier = s.by_warp + warps * w;
    s.experts = ctx.template shared<std::uint32_t>(2 * e);
    s.received = s.experts + e;
    return s;
  }
};

}  // namespace mori_ep::schedule::intra_node
