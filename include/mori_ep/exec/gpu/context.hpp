// SPDX-License-Identifier: MIT
//! @file The kernel context of a GPU warp.
#pragma once

#include "mori_ep/exec/gpu/target.hpp"

#if defined(MORI_EP_GPU)

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/gpu/encode.hpp"
#include "mori_ep/exec/gpu/rows.hpp"

namespace mori_ep::exec::gpu {

//! @brief The kernel context on a GPU (exec/concepts.hpp says what each call promises). Sums: the kernel has row sums,
//!        for which a launch provides scratch.
template <bool Sums>
class Context {
 public:
  static constexpr int lanes = Target::lanes;
  static constexpr int kTokensCountedAlone = 512;  // one per thread of a full block: a look, no loop
  static MORI_EP_HD constexpr int moving_warps(int warps) { return warps < 8 ? warps : 8; }
  static MORI_EP_HD constexpr int telling_warps(int warps) { return (warps + 7) / 8; }
  static MORI_EP_HD constexpr int row_parts(std::size_t bytes) { return (most_row_parts(bytes) + 3) / 4; }
  static MORI_EP_HD constexpr int most_row_parts(std::size_t bytes) {
    return static_cast<int>((bytes + lanes * 16 - 1) / (lanes * 16));
  }
  static MORI_EP_HD constexpr int warps_per_sum(std::size_t bytes) {
    int const most = most_row_parts(bytes);
    return most < 4 ? most : 4;
  }

  //! @brief `sums`: scratch of the row sums, sum_scratch(warps) bytes; not touched by kernels that have none.
  __device__ Context(std::byte* scratch, std::byte* sums) : scratch_(scratch), sums_(sums) {}
  static MORI_EP_HD constexpr std::size_t sum_scratch(int warps) {
    return kSumScratchPerWarp * static_cast<std::size_t>(warps);
  }

  [[nodiscard]] __device__ int lane() const { return Target::lane(); }
  [[nodiscard]] __device__ int warp() const { return Target::warp(); }
  [[nodiscard]] __device__ int warps() const { return Target::warps(); }
  [[nodiscard]] __device__ int block() const { return static_cast<int>(blockIdx.x); }
  [[nodiscard]] __device__ int blocks() const { return static_cast<int>(gridDim.x); }

  __device__ void warp_sync() const { Target::warp_sync(); }
  __device__ void block_sync() const { __syncthreads(); }
  __device__ bool arrive(std::uint32_t* counter) const { return arrive(counter, 1, gridDim.x); }
  __device__ bool arrive(std::uint32_t* counter, std::uint32_t pieces, std::uint32_t all) const {
    if (Target::add_acq_rel_device(counter, pieces) + pieces != all) return false;
    Target::store(counter, std::uint32_t{0});
    return true;
  }

  __device__ void tally(std::uint32_t* word, std::uint32_t value) const { atomicAdd(word, value); }

  [[nodiscard]] __device__ std::uint32_t draw(std::uint32_t* word) const {
    return lane() == 0 ? atomicAdd(word, 1u) : 0;
  }
  [[nodiscard]] __device__ std::uint32_t broadcast(std::uint32_t value) const { return Target::from_lane_0(value); }
  [[nodiscard]] __device__ std::uint64_t ballot(bool vote) const { return Target::ballot(vote); }
  __device__ void warp_or(std::uint32_t* word, std::uint32_t bits) const { atomicOr(word, bits); }

  template <class T>
  __device__ T* shared(std::size_t count) {
    constexpr std::size_t kAlign = alignof(T) > 8 ? alignof(T) : 8;
    used_ = (used_ + kAlign - 1) / kAlign * kAlign;
    auto* at = Target::scratch<T>(scratch_ + used_);
    used_ += count * sizeof(T);
    return at;
  }
  __device__ void shared_add(std::uint32_t* word, std::uint32_t value) const { atomicAdd(word, value); }

  template <class T>
  [[nodiscard]] __device__ T load(const T* p) const {
    return Target::load(p);
  }
  template <class T>
  __device__ void store(T* p, std::type_identity_t<T> value) const {
    Target::store(p, value);
  }
  //! Neighbouring lanes write neighbouring scalars, whole lines at a time.
  template <class T, class Piece>
  __device__ void pack(T* to, std::int32_t n, std::int32_t words, Piece&& piece) const {
    if (words == 0) return;
    auto const each = static_cast<std::uint32_t>(words);
    auto const pieces = static_cast<std::int32_t>(lanes / each), rest = lanes - pieces * words;
    auto i = static_cast<std::int32_t>(static_cast<std::uint32_t>(lane()) / each), word = lane() - i * words;
    MORI_EP_ROLLED
    for (std::int32_t at = lane(); at < n * words; at += lanes) {
      Target::store(to + at, Target::load(piece(i) + word));
      i += pieces;
      word += rest;
      if (word >= words) word -= words, ++i;
    }
  }

  template <class Place>
  __device__ __forceinline__ void multicast_row(const std::byte* src, std::byte* const* dst, Place&& place,
                                                std::size_t bytes, int part, int parts) const {
    gpu::multicast_row(src, dst, place, static_cast<RowBytes>(bytes), part * lanes + lane(), parts * lanes);
  }
  template <CodedRowType R, class Place>
  __device__ __forceinline__ void encode_row(const std::byte* src, std::byte* const* payloads, std::byte* const* scales,
                                             Place&& place, std::size_t elements, int part, int parts) const {
    gpu::encode_row<R>(src, payloads, scales, place, static_cast<RowBytes>(elements), part, parts);
  }
  template <RowForm R, bool Weighted>
  __device__ __forceinline__ void reduce_rows(const std::byte* const* srcs, const float* weights, int n,
                                              std::uint32_t group_starts, std::byte* dst, std::size_t elements,
                                              int part, int parts) const {
    static_assert(Sums, "reduce_rows: give the kernel a member static constexpr bool kReducesRows = true.");
    gpu::reduce_rows<R, Weighted>(srcs, weights, n, group_starts, dst,
                                  static_cast<RowBytes>(payload_bytes_of<R>(elements)), part * lanes + lane(),
                                  parts * lanes, sums_ + kSumScratchPerWarp * static_cast<std::size_t>(warp()));
  }
  template <RowForm R, bool Weighted>
  __device__ void sum_rows(const std::byte* const* srcs, const float* weights, int n, std::byte* dst,
                           std::size_t elements, int part, int parts) const {
    gpu::sum_rows<R, Weighted>(srcs, weights, n, dst, static_cast<RowBytes>(payload_bytes_of<R>(elements)),
                               part * lanes + lane(), parts * lanes);
  }
  template <Element T>
  __device__ void round_rows(const std::byte* const* srcs, int n, std::byte* dst, std::size_t elements, int part,
                             int parts) const {
    gpu::round_rows<T>(srcs, n, dst, static_cast<RowBytes>(elements * sizeof(T)), part * lanes + lane(), parts * lanes);
  }
  __device__ void zero_row(std::byte* dst, std::size_t bytes, int part, int parts) const {
    for (std::size_t at = static_cast<std::size_t>(part * lanes + lane()) * 16; at < bytes;
         at += static_cast<std::size_t>(parts) * lanes * 16)
      Target::store_row(dst + at, Vec16{});
  }

  __device__ void prefetch_row(const std::byte* src, std::size_t bytes, int part, int parts) const {
    for (auto at = static_cast<std::size_t>(part * lanes + lane()) * 128; at < bytes;
         at += static_cast<std::size_t>(parts) * lanes * 128)
      Target::prefetch(src + at);
  }

  __device__ void flush_stores() const { Target::flush_stores(); }
  __device__ void signal(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const {
    Target::store_release_system(word, signal_word(epoch, payload));
  }
  __device__ void signal_after_launch(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const {
    Target::store_after_launch(word, signal_word(epoch, payload));
  }
  __device__ void post(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const {
    Target::store_relaxed_system(word, signal_word(epoch, payload));
  }
  __device__ void launch_ends(std::uint32_t*) const {}  // freeing device memory waits for launches
  //! The first looks acquire: what comes soon is then there without being read again. Later ones are relaxed, since
  //! an acquire at every look empties caches under the blocks beside; the word is read once more with
  //! acquire when it is there.
  __device__ WaitResult wait(std::uint64_t* word, std::uint32_t epoch, const WaitLimits& limits,
                             WaitOrder order) const {
    bool const acquires = order == WaitOrder::acquire;
    std::uint64_t const seen = acquires ? Target::load_acquire_system(word) : Target::load_relaxed_system(word);
    if (signal_epoch(seen) == epoch) return {WaitEnd::arrived, seen};
    return poll(word, epoch, limits, start_ns_, acquires);
  }
  [[nodiscard]] __device__ bool claim(std::uint32_t* flag) const {
    return Target::exchange_acq_rel_system(flag, 1) == 0;
  }
  template <class T>
  [[nodiscard]] __device__ T peek(const T* p) const {
    return Target::load_acquire_system(p);
  }
  [[nodiscard]] __device__ std::uint32_t glance(const std::uint32_t* p) const { return Target::load(p); }
  template <class T>
  __device__ void publish(T* p, std::type_identity_t<T> value) const {
    Target::store_release_system(p, value);
  }

 private:
  static constexpr std::uint32_t kCheckEvery = 64;
  static constexpr std::uint32_t kAcquiringLooks = 32;  // twenty microseconds or so

  //! One deadline for all waits of a launch: peers that are late one after the other do not add up.
  static MORI_EP_COLD __device__ WaitResult poll(std::uint64_t* word, std::uint32_t epoch, WaitLimits limits,
                                                 std::uint64_t start_ns, bool acquires) {
    bool told = false;
    for (std::uint32_t round = 1;; ++round) {
      bool const acquired = acquires && round <= kAcquiringLooks;
      std::uint64_t const seen = acquired ? Target::load_acquire_system(word) : Target::load_relaxed_system(word);
      if (signal_epoch(seen) == epoch && told) Target::store_relaxed_system(limits.long_wait(), 0);
      if (signal_epoch(seen) == epoch)
        return {WaitEnd::arrived, acquired || !acquires ? seen : Target::load_acquire_system(word)};
      if (round % kCheckEvery != 0) continue;
      if (epoch_after(signal_epoch(seen), epoch)) return {WaitEnd::out_of_step, seen};
      if (Target::load_relaxed_system(limits.failed) != 0) return {WaitEnd::stopped, seen};
      for (std::int32_t r = 0; r < limits.world && round % (kCheckEvery * kCheckEvery) == 0; ++r)
        if (Target::load_relaxed_system(limits.peer_words + r) != 0) return {WaitEnd::peer_fault, seen, r};
      std::uint64_t const waited = Target::clock_ns() - start_ns;
      if (!told && limits.peer >= 0 && waited >= static_cast<std::uint64_t>(limits.timeout_ns) / 2) {
        Target::store_relaxed_system(limits.long_wait(), 1);
        told = true;
      }
      if (waited >= static_cast<std::uint64_t>(limits.timeout_ns)) return {WaitEnd::expired, seen};
      Target::nap();
    }
  }

  std::byte* scratch_;
  std::byte* sums_;
  std::size_t used_ = 0;
  std::uint64_t start_ns_ = Target::clock_ns();
};
static_assert(KernelContext<Context<true>>);

}  // namespace mori_ep::exec::gpu

#endif
