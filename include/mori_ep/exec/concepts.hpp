// SPDX-License-Identifier: MIT
//! @file What a machine must offer: the kernel context that every schedule is written against, and the host-side
//! policy.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "mori_ep/exec/signal_word.hpp"
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
//!        acquires what every earlier block released, and leaves the counter at zero.
template <class C>
concept HasBarriers = requires(C c, std::uint32_t* counter) {
  c.warp_sync();
  c.block_sync();
  { c.arrive(counter) } -> std::same_as<bool>;
};

//! @brief Scratch of the block, the same address for all its warps, and sums into it from any warp.
template <class C>
concept HasShared = requires(C c, std::uint32_t* word) {
  { c.template shared<std::uint32_t>(4) } -> std::same_as<std::uint32_t*>;
  c.shared_add(word, std::uint32_t{1});
};

//! @brief Plain memory: one scalar by one lane, or bytes by a whole warp; `add` is an atomic sum inside one device.
template <class C>
concept HasMemory = requires(C c, std::uint32_t* p, const std::uint32_t* q, void* to, const void* from) {
  { c.load(q) } -> std::same_as<std::uint32_t>;
  c.store(p, std::uint32_t{1});
  c.add(p, std::uint32_t{1});
  c.copy(to, from, std::size_t{4});
};

//! @brief The two primitives that carry every byte; called by a whole warp, rows 16-byte aligned and sized.
//!        `multicast_row(src, dst, n, bytes)` reads once and writes n times.
//!        `reduce_rows<T, weighted>(srcs, weights, n, group_starts, dst, elements)` adds in fp32 in the order given,
//!        each group (bit i of `group_starts` opens one) first by itself, then the groups, and rounds once.
//!        `zero_row` is the sum of no rows.
template <class C>
concept HasRows = requires(C c, const std::byte* src, std::byte* const* dst, const std::byte* const* srcs,
                           const float* weights, std::byte* out) {
  c.multicast_row(src, dst, 1, std::size_t{16});
  c.template reduce_rows<float, false>(srcs, weights, 1, std::uint32_t{0}, out, std::size_t{4});
  c.zero_row(out, std::size_t{16});
};

//! @brief Signals between ranks. `flush_stores` makes this warp's stores ready to be published by any warp of the
//!        block after a `block_sync`; `signal` releases, `wait` acquires, both at system scope. `claim` is true once.
//!        `publish` and `peek` are the same release and acquire for words that carry no epoch (fault words, totals).
template <class C>
concept HasSignals = requires(C c, std::uint64_t* word, const WaitLimits& limits) {
  c.flush_stores();
  c.signal(word, std::uint32_t{1}, std::uint32_t{0});
  { c.wait(word, std::uint32_t{1}, limits) } -> std::same_as<WaitResult>;
  { c.claim(static_cast<std::uint32_t*>(nullptr)) } -> std::same_as<bool>;
  c.publish(word, std::uint64_t{1});
  { c.peek(static_cast<const std::uint64_t*>(word)) } -> std::same_as<std::uint64_t>;
};

//! @brief Everything a schedule's kernel may do. One source, three machines: lanes is 1 on the host, 32 or 64 on a GPU.
template <class C>
concept KernelContext = HasGeometry<C> && HasBarriers<C> && HasShared<C> && HasMemory<C> && HasRows<C> && HasSignals<C>;

//! @brief How many blocks and warps a launch has and what it needs.
struct LaunchGeometry {
  int blocks = 1;
  int warps = 1;                  //!< per block
  std::size_t shared_bytes = 0;   //!< scratch per block
  std::size_t traffic_bytes = 0;  //!< an estimate of the bytes written; a machine may choose its stores by it
};

//! @brief Where kernels run. All blocks of one launch are resident together; a stream runs its work in order.
template <class E>
concept ExecPolicy = requires(std::byte* memory, void* dst, const void* src) {
  typename E::Stream;
  typename E::StreamRef;
  { E::kName } -> std::convertible_to<const char*>;
  { E::max_resident(1) } -> std::same_as<int>;    // blocks of that many warps that can be resident together
  { E::default_blocks(1) } -> std::same_as<int>;  // for one of that many ranks in this process
  { E::default_warps() } -> std::same_as<int>;
  { E::allocate(std::size_t{1}) } -> std::same_as<std::byte*>;  // zeroed, or nullptr
  E::release(memory, std::size_t{1});
  E::copy(dst, src, std::size_t{1});  // host thread, at once, either direction
};

}  // namespace mori_ep::exec
