// SPDX-License-Identifier: MIT
//! @file What a dispatch kernel is given, and a block's scratch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/routing/route.hpp"
#include "mori_ep/schedule/intra_node/fault.hpp"
#include "mori_ep/schedule/intra_node/work_split.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief Operands: x [t, H], ids [t, K], weights [t, K] fp32 or none, scales [t, scale_bytes] or none; t is `tokens`,
//!        or what `token_count` holds when it is given.
template <class PeerRef, routing::IndexType Index>
struct DispatchArgs {
  FaultPort<PeerRef> port;
  SetLayout set;
  [[no_unique_address]] FarLayoutOf<PeerRef> far;
  routing::Placement placement;
  std::int32_t topk, routes_per_token, max_tokens, capacity;
  std::int32_t relay_blocks;  // the last blocks, which only relay; 0: all do both
  Half halves;
  std::int32_t tokens;
  const std::int32_t* token_count;
  const std::byte* x;
  const Index* ids;
  const float* weights;
  const std::byte* scales;
  std::size_t x_stride, ids_stride, weights_stride, scales_stride;  // bytes, elements, elements, bytes
  std::size_t row_bytes, scale_bytes;                               // of a row as it is received
  bool coded;                                                       // the scales are the operator's own

  [[nodiscard]] MORI_EP_HD const Index* ids_of(std::int32_t token) const {
    return ids + static_cast<std::size_t>(token) * ids_stride;
  }
  [[nodiscard]] MORI_EP_HD const std::byte* row_of(std::int32_t token) const {
    return x + static_cast<std::size_t>(token) * x_stride;
  }

  //! @brief Do scales go beside the rows?
  [[nodiscard]] MORI_EP_HD bool brings_scales() const { return scales != nullptr || coded; }
  [[nodiscard]] MORI_EP_HD const float* weights_of(std::int32_t token) const {
    return weights + static_cast<std::size_t>(token) * weights_stride;
  }
  [[nodiscard]] MORI_EP_HD const std::byte* scales_of(std::int32_t token) const {
    return scales + static_cast<std::size_t>(token) * scales_stride;
  }

  //! @brief What is counted: rows for each rank and, where there are relays, behind them copies for each node.
  [[nodiscard]] MORI_EP_HD std::int32_t columns() const {
    if constexpr (PeerRef::kRelays)
      return placement.world() + far.nodes.count();
    else
      return placement.world();
  }
  //! @brief What far rank `peer` will be told in `epoch`, as counts_of() and expert_counts_of() have it there, one
  //!        behind the other.
  [[nodiscard]] MORI_EP_HD std::uint64_t* far_words(std::int32_t peer, std::uint32_t epoch) const {
    auto const world = static_cast<std::ptrdiff_t>(placement.world());
    return port.peers.template mine<std::uint64_t>(far.words) +
           ((epoch % 2) * world + peer) * (columns() + placement.experts_per_rank() + 2);
  }
  enum FarWord : std::int32_t { kCounts = 0, kExperts = 1 };
  //! @brief The number of the word by which far rank `source` says that what it tells is here.
  [[nodiscard]] MORI_EP_HD std::int32_t far_told(std::int32_t source, std::uint32_t epoch, FarWord what) const {
    return (static_cast<std::int32_t>(epoch % 2) * placement.world() + source) * 2 + what;
  }
  //! @brief Acquires what far rank `source` tells; at once for a near one, whose words are whole by themselves.
  template <class Ctx>
  [[nodiscard]] MORI_EP_HD bool hear_far(Ctx& ctx, std::int32_t source, std::uint32_t epoch, FarWord what) const {
    if constexpr (PeerRef::kFar)
      if (port.reaches_far(source))
        return port.await(ctx, port.peers.template mine<std::uint64_t>(far.told) + far_told(source, epoch, what), epoch,
                          Phase::dispatch_counts, source);
    return true;
  }

  static constexpr std::int32_t kIdsAtOnce = 8;
  //! @brief Ids [first, first + kIdsAtOnce) of token t, kNoExpert past topk. All are read before the first is looked
  //!        at: on a GPU the reads are what takes time.
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

  //! @brief The words of `peer` that the blocks of `source` write.
  template <class Peers>
  [[nodiscard]] MORI_EP_HD std::uint64_t* rows_arrived(const Peers& peers, std::int32_t peer,
                                                       std::int32_t source) const {
    return peers.template at<std::uint64_t>(peer, set.rows_arrived) + static_cast<std::ptrdiff_t>(source) * kMaxBlocks;
  }
  //! @brief What `source` tells `peer` in `epoch`: its rows for each column, then how many of its blocks send rows.
  template <class Peers>
  [[nodiscard]] MORI_EP_HD std::uint64_t* counts_of(const Peers& peers, std::int32_t peer, std::int32_t source,
                                                    std::uint32_t epoch) const {
    auto const world = static_cast<std::ptrdiff_t>(placement.world());
    return peers.template at<std::uint64_t>(peer, set.counts) + ((epoch % 2) * world + source) * (columns() + 1);
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

//! @brief How many tokens of a tile are before that of `bit`, of those that `votes` marks.
[[nodiscard]] MORI_EP_HD constexpr std::uint32_t votes_below(std::uint32_t votes, std::int32_t bit) noexcept {
  return static_cast<std::uint32_t>(routing::count_bits(votes & ((std::uint32_t{1} << bit) - 1)));
}

//! @brief A block's scratch during a dispatch. Votes say which tokens go to which column: a word per tile of tokens and
//!        column, a bit per token. Those of one window of tokens are here at a time. C columns: the ranks and, where
//!        there are relays, behind them the nodes.
template <class PeerRef>
struct DispatchScratch {
  enum Flag : std::int32_t {
    kStopped = 0,
    kVotesUnheard,
    kUnheard,
    kInvalid,
    kInvalidTold,
    kReceived,
    kMissing,
    kLast,
    kLastStaged,
    kFlags
  };
  static constexpr std::int32_t kTile = intra_node::kTile;
  static constexpr std::int32_t kTilesOfRun = 8;    // that one thread numbers
  static constexpr std::int32_t kFewestTiles = 16;  // of a window
  static constexpr std::int32_t kTilesAtOnce = 2;   // that a warp of the widest machine marks

  PeerRef peers;            // through `table`
  std::byte** table;        // [W] arena bases
  std::uint32_t* flags;     // [kFlags]
  std::uint32_t* before;    // [C] rows of earlier ranks, and of tokens before the window
  std::uint32_t* total;     // [C] rows of all tokens, by destination (when the blocks share the counting)
  std::uint32_t* experts;   // [E] rows of the tokens that this block counts, by expert
  std::uint32_t* received;  // [E_r] rows received, by local expert
  std::uint32_t* rows;      // [W] rows that each source sends here
  std::uint32_t* blocks;    // [W] how many blocks of each source send rows
  std::uint32_t* votes;     // [tiles][C]
  std::uint32_t* first;     // [tiles][C] rows of the window's earlier tiles
  std::uint32_t* runs;      // [tiles / kTilesOfRun][C] rows of a run of tiles
  // far ranks:
  std::uint32_t* shift;  // [W] a row of ours there is staged at row + shift
  std::uint32_t* stage;  // [W] where our rows for each are staged
  std::uint32_t* there;  // [W] where each has staged its rows for this rank
  // with relays:
  std::uint32_t* copies;   // [N] of this rank's tokens for each node; `stage` has where they are staged
  std::uint32_t* relayed;  // [W] how many records each source sends to this rank
  // of this warp:
  std::byte** targets;   // [2][K] the rows of the token that it moves, in ascending rank order; their scales
  std::int32_t* tokens;  // [kTile] those that go to the rank that it tells of them
  std::uint32_t* marks;  // [kTilesAtOnce][C] votes of the tokens that it counts

  //! @brief How many tiles a window has.
  [[nodiscard]] static MORI_EP_HD constexpr std::int32_t tiles(std::int32_t columns) noexcept {
    std::int32_t const fit = 2048 / columns / kTilesOfRun * kTilesOfRun;
    return fit > 128 ? 128 : fit < kFewestTiles ? kFewestTiles : fit;
  }
  //! @brief How many words are added to, and start at zero.
  [[nodiscard]] static MORI_EP_HD constexpr std::int32_t sums(std::int32_t columns, std::int32_t experts) noexcept {
    return kFlags + 2 * columns + 2 * experts;
  }
  [[nodiscard]] static constexpr std::size_t bytes(int world, int columns, int experts, int topk, int warps) noexcept {
    auto const words = static_cast<std::size_t>(sums(columns, experts) + 2 * world + (PeerRef::kFar ? 5 : 0) * world +
                                                (2 * tiles(columns) + tiles(columns) / kTilesOfRun) * columns +
                                                warps * (kTile + kTilesAtOnce * columns));
    auto const pointers = static_cast<std::size_t>(world + 2 * warps * topk);
    return words * sizeof(std::uint32_t) + pointers * sizeof(std::byte*) + 64;
  }
  //! @brief `targets`: pointers of a warp, K or, where rows have scales of the operator's, 2 K.
  template <class Ctx>
  static MORI_EP_HD DispatchScratch carve(Ctx& ctx, const PeerRef& far, std::int32_t columns, std::int32_t experts,
                                          std::int32_t targets) {
    std::int32_t const world = far.world, window = tiles(columns) * columns;
    auto const words = [&](std::int32_t n) { return ctx.template shared<std::uint32_t>(static_cast<std::size_t>(n)); };
    auto const pointers = [&](std::int32_t n) { return ctx.template shared<std::byte*>(static_cast<std::size_t>(n)); };
    DispatchScratch s;
    s.table = pointers(world);
    s.peers = far.with_table(s.table);
    s.targets = pointers(ctx.warps() * targets) + ctx.warp() * targets;
    s.flags = words(sums(columns, experts) + 2 * world);
    s.before = s.flags + kFlags;
    s.total = s.before + columns;
    s.experts = s.total + columns;
    s.received = s.experts + experts;
    s.rows = s.received + experts;
    s.blocks = s.rows + world;
    s.votes = words(2 * window + window / kTilesOfRun);
    s.first = s.votes + window;
    s.runs = s.first + window;
    s.marks = words(ctx.warps() * (kTilesAtOnce * columns + kTile)) + ctx.warp() * (kTilesAtOnce * columns + kTile);
    s.tokens = reinterpret_cast<std::int32_t*>(s.marks + kTilesAtOnce * columns);
    if constexpr (PeerRef::kFar) {
      s.shift = words(5 * world);
      s.stage = s.shift + world;
      s.there = s.stage + world;
      s.copies = s.there + world;
      s.relayed = s.copies + world;
    }
    return s;
  }
};

}  // namespace mori_ep::schedule::intra_node
