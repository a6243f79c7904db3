// SPDX-License-Identifier: MIT
//! @file What a machine must offer: the kernel context that every schedule is written against, and the host-side
//! policy.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "mori_ep/error.hpp"
#include "mori_ep/exec/signal_word.hpp"
#include "mori_ep/numeric/coded_row.hpp"
#include "mori_ep/numeric/element.hpp"

namespace mori_ep::exec {

//! @brief A context knows where it stands: `lane() < lanes`, `warp() < warps()`, `block() < blocks()`.
template <class C>
concept HasGeometry = requires(const C c) {
  { C::lanes } -> std::convertible_to<int>;
  { c.lane() } -> std::same_as<int>;
  { c.warp() } -> std::same_as<int>;
  { c.warps() } -> std::same_as<int>;
  { c.block() } -> std::same_as<int>;
  { c.blocks() } -> std::same_as<int>;
};

//! @brief Meeting points. `block_sync` orders the block's plain accesses; `arrive` is true for the last block only,
//!        acquires what every earlier block released, and leaves the counter at zero; `arrive(counter, pieces, all)` is
//!        the same for whoever brings the last of `all` pieces, each a warp's that has flushed its stores and met.
//!        `tally` adds to a word that the blocks of a launch share, and orders nothing; `draw`, called by a whole warp,
//!        adds one and gives lane 0 what was there.
template <class C>
concept HasBarriers = requires(C c, std::uint32_t* counter) {
  c.warp_sync();
  c.block_sync();
  { c.arrive(counter) } -> std::same_as<bool>;
  { c.arrive(counter, std::uint32_t{1}, std::uint32_t{2}) } -> std::same_as<bool>;
  c.tally(counter, std::uint32_t{1});
  { c.draw(counter) } -> std::same_as<std::uint32_t>;
};

//! @brief How a machine likes its work split. Up to `kTokensCountedAlone` tokens every block counts all of them, beyond
//!        that the blocks share the counting. `telling_warps(warps)` of a block's warps, the last, send what travels
//!        beside rows, and `moving_warps(warps)`, the first, move rows, all of them when there are few. Warps best move
//!        a row in `row_parts(bytes)`, or up to `most_row_parts(bytes)` when there are few rows; `warps_per_sum(bytes)`
//!        of them best share a sum.
template <class C>
concept HasWorkSplit = requires {
  { C::kTokensCountedAlone } -> std::convertible_to<int>;
  { C::telling_warps(16) } -> std::same_as<int>;
  { C::moving_warps(16) } -> std::same_as<int>;
  { C::row_parts(std::size_t{16}) } -> std::same_as<int>;
  { C::most_row_parts(std::size_t{16}) } -> std::same_as<int>;
  { C::warps_per_sum(std::size_t{16}) } -> std::same_as<int>;
};

//! @brief The lanes of a warp tell each other. `ballot`, called by a whole warp: a bit per lane; `broadcast`, so too,
//!        gives all what lane 0 has. `warp_or` sets bits in a word of scratch that only this warp's lanes touch.
template <class C>
concept HasVotes = requires(C c, std::uint32_t* word) {
  { c.ballot(true) } -> std::same_as<std::uint64_t>;
  { c.broadcast(std::uint32_t{1}) } -> std::same_as<std::uint32_t>;
  c.warp_or(word, std::uint32_t{1});
};

//! @brief Scratch of the block, the same address for all its warps, and sums into it from any warp.
template <class C>
concept HasShared = requires(C c, std::uint32_t* word) {
  { c.template shared<std::uint32_t>(4) } -> std::same_as<std::uint32_t*>;
  c.shared_add(word, std::uint32_t{1});
};

//! @brief Plain memory: one scalar by one lane. `pack(to, n, words, piece)`, called by a whole warp, writes n pieces of
//!        `words` scalars one behind the other, and `piece(i)` says where the i-th is read.
template <class C>
concept HasMemory = requires(C c, std::uint32_t* p, const std::uint32_t* q,
                             const std::uint32_t* (*piece)(std::int32_t)) {
  { c.load(q) } -> std::same_as<std::uint32_t>;
  c.store(p, std::uint32_t{1});
  c.pack(p, std::int32_t{1}, std::int32_t{4}, piece);
};

//! @brief The two primitives that carry every byte; called by a whole warp, rows 16-byte aligned and sized. The last
//!        two arguments: this warp does its part of `parts` nearly equal ones, when several warps share a row.
//!        `multicast_row(src, dst, place, bytes)` reads once and writes n times: `place()`, called once by all lanes
//!        when the row is on its way, fills `dst` and says n. `reduce_rows<T, weighted>(srcs, weights,
//!        n, group_starts, dst, elements)` adds in fp32 in the order given, each group (bit i of `group_starts` opens
//!        one) first by itself, then the groups, and rounds once. `sum_rows<T, weighted>` adds so, too, one group, and
//!        keeps the fp32, in an order of elements that is the machine's own; `round_rows<T>` adds such sums and rounds
//!        once. `encode_row<R>(src, payloads, scales, place, elements)` is `multicast_row` of a row that is coded on the
//!        way: its codes go to `payloads`, its scales to `scales`; T of the two sums may be a CodedRow, too, whose scales
//!        lie behind its codes. `zero_row` is the sum of no rows; `prefetch_row` may bring a row nearer before it is read.
template <class C>
concept HasRows = requires(C c, const std::byte* src, std::byte* const* dst, const std::byte* const* srcs,
                           const float* weights, std::byte* out, int (*place)()) {
  c.multicast_row(src, dst, place, std::size_t{16}, 0, 1);
  c.template reduce_rows<float, false>(srcs, weights, 1, std::uint32_t{0}, out, std::size_t{4}, 0, 1);
  c.template sum_rows<bf16, false>(srcs, weights, 1, out, std::size_t{8}, 0, 1);
  c.template round_rows<bf16>(srcs, 1, out, std::size_t{8}, 0, 1);
  c.template reduce_rows<CodedRow<bf16, fp8_e4m3, 128>, false>(srcs, weights, 1, std::uint32_t{0}, out, std::size_t{16},
                                                               0, 1);
  c.template encode_row<CodedRow<bf16, fp8_e4m3, 128>>(src, dst, dst, place, std::size_t{16}, 0, 1);
  c.zero_row(out, std::size_t{16}, 0, 1);
  c.prefetch_row(src, std::size_t{16}, 0, 1);
};

//! @brief Signals between ranks. `flush_stores` makes this warp's stores ready to be published by any warp of the
//!        block after a `block_sync`; `signal` releases and `wait` acquires, both at system scope.
//!        `signal_after_launch` orders only what the stream did before this launch; `post` orders nothing: its payload
//!        is all there is to see. `publish` and `peek` are release and acquire for words that carry no epoch; `glance`
//!        sees a value and orders nothing. `claim` is true once. `launch_ends` is a block's last act: it counts, for a
//!        host that may not free memory under a launch.
template <class C>
concept HasSignals = requires(C c, std::uint64_t* word, const WaitLimits& limits) {
  c.flush_stores();
  c.signal(word, std::uint32_t{1}, std::uint32_t{0});
  c.signal_after_launch(word, std::uint32_t{1}, std::uint32_t{0});
  c.post(word, std::uint32_t{1}, std::uint32_t{0});
  c.launch_ends(static_cast<std::uint32_t*>(nullptr));
  { c.wait(word, std::uint32_t{1}, limits, WaitOrder::acquire) } -> std::same_as<WaitResult>;
  { c.claim(static_cast<std::uint32_t*>(nullptr)) } -> std::same_as<bool>;
  { c.glance(static_cast<const std::uint32_t*>(nullptr)) } -> std::same_as<std::uint32_t>;
  c.publish(word, std::uint64_t{1});
  { c.peek(static_cast<const std::uint64_t*>(word)) } -> std::same_as<std::uint64_t>;
};

//! @brief Everything a schedule's kernel may do. One source, three machines: lanes is 1 on the host, 32 or 64 on a GPU.
template <class C>
concept KernelContext = HasGeometry<C> && HasWorkSplit<C> && HasBarriers<C> && HasVotes<C> && HasShared<C> &&
    HasMemory<C> && HasRows<C> && HasSignals<C>;

//! @brief How many blocks and warps a launch has and what it needs.
struct LaunchGeometry {
  int blocks = 1;
  int warps = 1;                  //!< per block
  std::size_t shared_bytes = 0;   //!< scratch per block
  std::size_t traffic_bytes = 0;  //!< an estimate of the bytes written; a machine may choose its stores by it
};

//! @brief What a machine can keep resident of one kernel, for every number of warps per block up to kMaxWarps.
struct Residency {
  static constexpr int kMaxWarps = 1024;
  int max_warps = 0;               //!< of a block
  int blocks[kMaxWarps + 1] = {};  //!< resident together, by warps per block
};

//! @brief Memory and the descriptor by which another process maps it. The descriptor is the caller's to close; the
//!        memory outlives it.
struct ShareableMemory {
  std::byte* memory = nullptr;
  int fd = -1;
};

//! @brief Memory of a device as drivers of other devices find it: a dmabuf, and where in it the memory begins. The
//!        descriptor is the caller's to close once they have registered it; -1 where there is none.
struct Dmabuf {
  int fd = -1;
  std::uint64_t offset = 0;
};

//! @brief Where kernels run. All blocks of one launch are resident together; a stream runs its work in order.
template <class E>
concept ExecPolicy = requires(std::byte* memory, void* dst, const void* src, typename E::StreamRef stream) {
  typename E::Stream;
  { E::kName } -> std::convertible_to<const char*>;
  { E::kFreeWaits } -> std::convertible_to<bool>;     // release() waits for launches on the memory's own device
  E::drain();                                         // waits for those on the calling thread's device
  { E::device_count() } -> std::same_as<int>;         // 0: nothing that kernels could run on
  { E::use_device(0) } -> std::same_as<Status>;       // what the calling thread's later calls act on
  { E::capturing() } -> std::same_as<bool>;           // no memory was given: because work is being captured?
  { E::device() } -> std::same_as<std::uint64_t>;     // ranks of equal nonzero values share their blocks
  { E::ordinal() } -> std::same_as<int>;              // of the calling thread's device
  { E::reachable() } -> std::same_as<std::uint64_t>;  // devices whose memory it can reach, a bit per ordinal
  { E::default_blocks(1, 1) } -> std::same_as<int>;   // of that many resident, for that many ranks on this host
  { E::default_warps() } -> std::same_as<int>;
  { E::allocate(std::size_t{1}) } -> std::same_as<std::byte*>;  // zeroed, or nullptr
  E::release(memory, std::size_t{1});
  { E::allocate_board(std::size_t{1}) } -> std::same_as<std::byte*>;  // the same, and the host may read and write it
  E::release_board(memory, std::size_t{1});
  { E::host_reaches(src) } -> std::same_as<bool>;                 // may the host's threads read and write there?
  { E::dmabuf(src, std::size_t{1}) } -> std::same_as<Dmabuf>;     // of memory that is the device's own
  { E::copy(dst, src, std::size_t{1}) } -> std::same_as<Status>;  // at once, in either direction
  { E::synchronize(stream) } -> std::same_as<Status>;
  { E::share_memory() } -> std::same_as<Status>;  // after allocation: this device may reach its peers' memory
};

//! @brief A machine whose ranks may be processes: memory and boards come with a descriptor by which another process maps
//!        them, and last until the last of those that made or mapped them has given them back, in whatever order.
template <class E>
concept SharesBetweenProcesses = ExecPolicy<E> && requires(std::byte* memory) {
  { E::can_share() } -> std::same_as<bool>;  // does the calling thread's device do it?
  { E::allocate_shareable(std::size_t{1}) } -> std::same_as<ShareableMemory>;  // zeroed, or nullptr and -1
  E::release_shareable(memory, std::size_t{1});                                // what this process allocated
  { E::allocate_shareable_board(std::size_t{1}) } -> std::same_as<ShareableMemory>;
  E::release_shareable_board(memory, std::size_t{1});
  { E::map_shared(0, std::size_t{1}) } -> std::same_as<std::byte*>;  // nullptr when it cannot
  E::unmap_shared(memory, std::size_t{1});                           // what this process mapped
  { E::map_shared_board(0, std::size_t{1}) } -> std::same_as<std::byte*>;
  E::unmap_shared_board(memory, std::size_t{1});
};

}  // namespace mori_ep::exec
