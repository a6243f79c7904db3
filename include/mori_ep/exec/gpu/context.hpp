// SPDX-License-Identifier: MIT
//! @file The kernel context of a GPU warp.
#pragma once

#include "mori_ep/exec/gpu/target.hpp"

#if defined(MORI_EP_GPU)

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/gpu/rows.hpp"

namespace mori_ep::exec::gpu {

//! @brief The kernel context on a GPU (exec/concepts.hpp says what each call promises). Sums: the kernel has row sums, for
//!        which a launch provides scratch.
template <bool Sums>
class Context {
 public:
  static constexpr int lanes = Target::lanes;
  static constexpr int kTokensCountedAlone = 512;  // one per thread of a full block: a look, no loop
  static MORI_EP_HD constexpr int row_warps(int warps) { return warps > 2 ? warps - (warps + 7) / 8 : warps; }
  static MORI_EP_HD constexpr int warps_per_row(std::size_t bytes) {
    return static_cast<int>((bytes + lanes * 16 - 1) / (lanes * 16));
  }
  static MORI_EP_HD constexpr int warps_per_sum(std::size_t bytes) {
    int const most = warps_per_row(bytes);
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
  __device__ bool arrive(std::uint32_t* counter) const {
    if (Target::add_acq_rel_device(counter, 1) + 1 != gridDim.x) return false;
    Target::store(counter, std::uint32_t{0});
    return true;
  }

  __device__ void tally(std::uint32_t* word, std::uint32_t value) const { atomicAdd(word, value); }

  //! Lane i visits bits i and i + lanes, so that the visits run side by side.
  template <class Visit>
  __device__ void for_each_vote(std::uint64_t bits, Visit&& visit) const {
    std::uint64_t votes[64 / lanes] = {};
    for (std::uint64_t any = Target::warp_or(bits); any != 0; any &= any - 1) {
      int const bit = __ffsll(static_cast<long long>(any)) - 1;
      std::uint64_t const voters = Target::ballot(((bits >> bit) & 1u) != 0);
#pragma unroll
      for (int half = 0; half < 64 / lanes; ++half)
        if (bit == lane() + half * lanes) votes[half] = voters;
    }
#pragma unroll
    for (int half = 0; half < 64 / lanes; ++half)
      if (votes[half] != 0) visit(lane() + half * lanes, votes[half]);
    Target::warp_sync();
  }

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
  //! 4-byte words where both ends and the size allow, bytes elsewhere.
  __device__ void copy(void* to, const void* from, std::size_t bytes) const {
    auto const bits = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
    copy_pieces(1, bytes, bits, lane(), lanes, [&](std::int32_t, std::byte*& piece, const std::byte*& source) {
      piece = static_cast<std::byte*>(to);
      source = static_cast<const std::byte*>(from);
      return true;
    });
  }
  //! Neighbouring threads copy neighbouring words, of the same piece or the next: what lies side by side is written at
  //! the same time.
  template <class Locate>
  __device__ void copy_pieces(std::int32_t n, std::size_t bytes, std::uintptr_t alignment, std::int32_t first,
                              std::int32_t step, Locate&& locate) const {
    if ((alignment | bytes) % 4 == 0)
      copy_words<std::uint32_t>(n, static_cast<std::int32_t>(bytes / 4), first, step, locate);
    else
      copy_words<std::uint8_t>(n, static_cast<std::int32_t>(bytes), first, step, locate);
  }

  __device__ __forceinline__ void multicast_row(const std::byte* src, std::byte* const* dst, int n, std::size_t bytes,
                                                int part, int parts) const {
    gpu::multicast_row(src, dst, n, static_cast<RowBytes>(bytes), part * lanes + lane(), parts * lanes);
  }
  template <Element T, bool Weighted>
  __device__ __forceinline__ void reduce_rows(const std::byte* const* srcs, const float* weights, int n,
                                              std::uint32_t group_starts, std::byte* dst, std::size_t elements,
                                              int part, int parts) const {
    static_assert(Sums, "reduce_rows: give the kernel a member static constexpr bool kReducesRows = true.");
    gpu::reduce_rows<T, Weighted>(srcs, weights, n, group_starts, dst, static_cast<RowBytes>(elements * sizeof(T)),
                                  part * lanes + lane(), parts * lanes,
                                  sums_ + kSumScratchPerWarp * static_cast<std::size_t>(warp()));
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
  //! Looks and polls relaxed, since an acquire at every look would empty the first-level cache under the blocks beside;
  //! the word is read once more with acquire when it is there.
  __device__ WaitResult wait(std::uint64_t* word, std::uint32_t epoch, const WaitLimits& limits,
                             WaitOrder order) const {
    std::uint64_t seen = Target::load_relaxed_system(word);
    if (signal_epoch(seen) != epoch) {
      WaitResult const got = poll(word, epoch, limits, start_ns_);
      if (got.end != WaitEnd::arrived) return got;
      seen = got.word;
    }
    return {WaitEnd::arrived, order == WaitOrder::none ? seen : Target::load_acquire_system(word)};
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

  //! One deadline for all waits of a launch: peers that are late one after the other do not add up.
  static MORI_EP_COLD __device__ WaitResult poll(std::uint64_t* word, std::uint32_t epoch, WaitLimits limits,
                                                 std::uint64_t start_ns) {
    for (std::uint32_t round = 1;; ++round) {
      std::uint64_t const seen = Target::load_relaxed_system(word);
      if (signal_epoch(seen) == epoch) return {WaitEnd::arrived, seen};
      if (round % kCheckEvery != 0) continue;
      if (epoch_after(signal_epoch(seen), epoch)) return {WaitEnd::out_of_step, seen};
      if (Target::load_relaxed_system(limits.failed) != 0) return {WaitEnd::stopped, seen};
      for (std::int32_t r = 0; r < limits.world && round % (kCheckEvery * kCheckEvery) == 0; ++r)
        if (Target::load_relaxed_system(limits.peer_faults + r) != 0) return {WaitEnd::peer_fault, seen, r};
      if (Target::clock_ns() - start_ns >= static_cast<std::uint64_t>(limits.timeout_ns))
        return {WaitEnd::expired, seen};
      Target::nap();
    }
  }

  template <class Word, class Locate>
  __device__ void copy_words(std::int32_t n, std::int32_t each, std::int32_t first, std::int32_t step,
                             Locate&& locate) const {
    if (each == 0) return;
    std::int32_t const pieces = step / each, words = step - pieces * each;
    std::int32_t piece = first / each, word = first - piece * each;
    MORI_EP_ROLLED
    while (piece < n) {
      std::byte* to = nullptr;
      const std::byte* from = nullptr;
      if (locate(piece, to, from))
        Target::store(reinterpret_cast<Word*>(to) + word, Target::load(reinterpret_cast<const Word*>(from) + word));
      piece += pieces;
      word += words;
      if (word >= each) word -= each, ++piece;
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
