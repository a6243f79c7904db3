// SPDX-License-Identifier: MIT
//! @file The kernel context of a CPU thread: one lane, a thread per warp, scratch shared by the threads of a block.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>
#include <type_traits>
#if defined(__linux__)
#include <sched.h>
#endif

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/host/rows.hpp"

namespace mori_ep::exec::host {

inline void pause_cpu() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

//! @brief Waits politely: a few spins, then the core goes to whoever needs it, then short sleeps.
//!
//! Two cores may carry 64 ranks, so a waiter must not keep a core from the rank it waits for. A waiter that only yields
//! still takes its share of a core, and hundreds of them take all of it: they yield for a time, not for a count, and
//! sleep for a sixteenth of what they have waited. `soon_asleep` when what it waits for is that core's own work, as a
//! soft network's is (bench/results/notes.md).
class Backoff {
 public:
  explicit Backoff(bool soon_asleep = false) noexcept : most_yields_(soon_asleep ? kFewYields : kYields) {}
  void pause() noexcept {
    ++rounds_;
    if (rounds_ <= kSpins) return pause_cpu();
    auto const now = std::chrono::steady_clock::now();
    if (rounds_ == kSpins + 1) since_ = now;
    std::chrono::nanoseconds const waited = now - since_;
    if (rounds_ <= kSpins + most_yields_ && waited < kYieldTime) return std::this_thread::yield();
    std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(waited / 16, kShortestSleep, kLongestSleep));
  }
  [[nodiscard]] std::uint32_t rounds() const noexcept { return rounds_; }

 private:
  static constexpr std::uint32_t kSpins = 32, kYields = 4096, kFewYields = 64;
  static constexpr std::chrono::milliseconds kYieldTime{2};
  static constexpr std::chrono::microseconds kShortestSleep{50}, kLongestSleep{500};
  std::uint32_t most_yields_;
  std::uint32_t rounds_ = 0;
  std::chrono::steady_clock::time_point since_{};
};

//! @brief Meeting point of a block's threads; reusable. Arrivals release, the last one's release is what leavers
//! acquire.
class BlockBarrier {
 public:
  void wait(int parties) noexcept {
    if (parties <= 1) return;
    auto const turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == parties) {
      arrived_.store(0, std::memory_order_relaxed);
      turn_.store(turn + 1, std::memory_order_release);
      return;
    }
    for (Backoff backoff; turn_.load(std::memory_order_acquire) == turn;) backoff.pause();
  }

 private:
  std::atomic<int> arrived_{0};
  std::atomic<std::uint32_t> turn_{0};
};

//! @brief What the threads of one block share.
struct BlockState {
  BlockBarrier barrier;
  std::byte* scratch = nullptr;
};

//! @brief The kernel context on a CPU (exec/concepts.hpp says what each call promises).
class Context {
 public:
  static constexpr int lanes = 1;
  static constexpr int kTokensCountedAlone = 64;
  static constexpr int moving_warps(int warps) noexcept { return warps; }
  static constexpr int telling_warps(int warps) noexcept { return warps; }
  static constexpr int row_parts(std::size_t) noexcept { return 1; }
  static constexpr int most_row_parts(std::size_t) noexcept { return 1; }
  static constexpr int warps_per_sum(std::size_t) noexcept { return 1; }

  Context(BlockState& block_state, int block, int blocks, int warp, int warps, bool streaming) noexcept
      : state_(&block_state), block_(block), blocks_(blocks), warp_(warp), warps_(warps), streaming_(streaming) {}

  [[nodiscard]] int lane() const noexcept { return 0; }
  [[nodiscard]] int warp() const noexcept { return warp_; }
  [[nodiscard]] int warps() const noexcept { return warps_; }
  [[nodiscard]] int block() const noexcept { return block_; }
  [[nodiscard]] int blocks() const noexcept { return blocks_; }

  void warp_sync() const noexcept {}
  void block_sync() noexcept { state_->barrier.wait(warps_); }

  //! @brief Each arrival releases this block's work and, by the counter's release sequence, the last acquires all.
  bool arrive(std::uint32_t* counter) noexcept { return arrive(counter, 1, static_cast<std::uint32_t>(blocks_)); }
  bool arrive(std::uint32_t* counter, std::uint32_t pieces, std::uint32_t all) noexcept {
    std::atomic_ref<std::uint32_t> arrived(*counter);
    if (arrived.fetch_add(pieces, std::memory_order_acq_rel) + pieces != all) return false;
    arrived.store(0, std::memory_order_relaxed);
    return true;
  }

  void tally(std::uint32_t* word, std::uint32_t value) const noexcept {
    std::atomic_ref<std::uint32_t>(*word).fetch_add(value, std::memory_order_relaxed);
  }

  [[nodiscard]] std::uint32_t draw(std::uint32_t* word) const noexcept {
    return std::atomic_ref<std::uint32_t>(*word).fetch_add(1, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint32_t broadcast(std::uint32_t value) const noexcept { return value; }
  [[nodiscard]] std::uint64_t ballot(bool vote) const noexcept { return vote ? 1 : 0; }
  void warp_or(std::uint32_t* word, std::uint32_t bits) const noexcept { *word |= bits; }

  template <class T>
  T* shared(std::size_t count) noexcept {
    constexpr std::size_t kAlign = alignof(T) > 8 ? alignof(T) : 8;
    used_ = (used_ + kAlign - 1) / kAlign * kAlign;
    auto* at = reinterpret_cast<T*>(state_->scratch + used_);
    used_ += count * sizeof(T);
    return at;
  }
  void shared_add(std::uint32_t* word, std::uint32_t value) noexcept {
    if (warps_ == 1)
      *word += value;
    else
      std::atomic_ref<std::uint32_t>(*word).fetch_add(value, std::memory_order_relaxed);
  }

  template <class T>
  [[nodiscard]] T load(const T* p) const noexcept {
    return *p;
  }
  template <class T>
  void store(T* p, std::type_identity_t<T> value) const noexcept {
    *p = value;
  }
  template <class T, class Piece>
  void pack(T* to, std::int32_t n, std::int32_t words, Piece&& piece) const noexcept {
    for (std::int32_t i = 0; i < n; ++i, to += words)
      std::memcpy(to, piece(i), static_cast<std::size_t>(words) * sizeof(T));
  }

  template <class Place>
  void multicast_row(const std::byte* src, std::byte* const* dst, Place&& place, std::size_t bytes, int part,
                     int parts) const noexcept {
    int const n = place();
    Span const span = Span::part(bytes, part, parts);
    streaming_ ? host::multicast_row<true>(src, dst, n, span) : host::multicast_row<false>(src, dst, n, span);
  }
  template <RowForm R, bool Weighted>
  void reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                   std::byte* dst, std::size_t elements, int part, int parts) const noexcept {
    auto const reduce = [&](const auto&... where) {
      streaming_ ? host::reduce_rows<R, Weighted, true>(srcs, weights, n, group_starts, dst, where...)
                 : host::reduce_rows<R, Weighted, false>(srcs, weights, n, group_starts, dst, where...);
    };
    if constexpr (CodedRowType<R>)
      reduce(elements, part, parts);
    else
      reduce(Span::part(elements * sizeof(R), part, parts));
  }
  template <RowForm R, bool Weighted>
  void sum_rows(const std::byte* const* srcs, const float* weights, int n, std::byte* dst, std::size_t elements,
                int part, int parts) const noexcept {
    if constexpr (CodedRowType<R>) {
      auto const [begin, end] = Span::part(elements, part, parts, kCodedCell<R>);
      host::vectors16::sum_coded<R, Weighted>(srcs, weights, n, dst, R::payload_bytes(elements), begin, end);
    } else {
      host::vectors16::sum_rows<R, Weighted>(srcs, weights, n, dst, Span::part(elements * sizeof(R), part, parts));
    }
  }
  template <Element T>
  void round_rows(const std::byte* const* srcs, int n, std::byte* dst, std::size_t elements, int part,
                  int parts) const noexcept {
    host::vectors16::round_rows<T>(srcs, n, dst, Span::part(elements * sizeof(T), part, parts));
  }
  template <CodedRowType R, class Place>
  void encode_row(const std::byte* src, std::byte* const* payloads, std::byte* const* scales, Place&& place,
                  std::size_t elements, int part, int parts) const noexcept {
    int const n = place();
    streaming_ ? host::encode_row<R, true>(src, payloads, scales, n, elements, part, parts)
               : host::encode_row<R, false>(src, payloads, scales, n, elements, part, parts);
  }
  void zero_row(std::byte* dst, std::size_t bytes, int part, int parts) const noexcept {
    Span const span = Span::part(bytes, part, parts);
    streaming_ ? host::zero_row<true>(dst, span) : host::zero_row<false>(dst, span);
  }

  void prefetch_row(const std::byte*, std::size_t, int, int) const noexcept {}  // the row loops prefetch by themselves

  void flush_stores() const noexcept {
    if (streaming_) fence_streaming();
  }
  void signal(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const noexcept {
    std::atomic_ref<std::uint64_t>(*word).store(signal_word(epoch, payload), std::memory_order_release);
  }
  void signal_after_launch(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const noexcept {
    signal(word, epoch, payload);
  }
  void post(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const noexcept {
    std::atomic_ref<std::uint64_t>(*word).store(signal_word(epoch, payload), std::memory_order_relaxed);
  }
  void launch_ends(std::uint32_t* blocks) const noexcept {
    std::atomic_ref<std::uint32_t>(*blocks).fetch_add(1, std::memory_order_release);
  }
  WaitResult wait(std::uint64_t* word, std::uint32_t epoch, const WaitLimits& limits,
                  WaitOrder = WaitOrder::acquire) noexcept {
    std::atomic_ref<std::uint64_t> signal(*word);
    std::uint64_t seen = signal.load(std::memory_order_acquire);
    if (signal_epoch(seen) == epoch) return {WaitEnd::arrived, seen};
    // One deadline for all waits of this thread's launch: peers that are late one after the other do not add up.
    if (!waited_) deadline_ = std::chrono::steady_clock::now() + std::chrono::nanoseconds(limits.timeout_ns);
    waited_ = true;
    bool told = limits.peer < 0;
    for (Backoff backoff(limits.by_network);;) {
      backoff.pause();
      seen = signal.load(std::memory_order_acquire);
      if (signal_epoch(seen) == epoch) {
        if (told && limits.peer >= 0) publish(limits.long_wait(), 0);
        return {WaitEnd::arrived, seen};
      }
      if (backoff.rounds() % kCheckEvery == 0) {
        if (epoch_after(signal_epoch(seen), epoch)) return {WaitEnd::out_of_step, seen};
        if (peek(limits.failed) != 0) return {WaitEnd::stopped, seen};
        for (std::int32_t r = 0; r < limits.world; ++r)
          if (peek(limits.peer_words + r) != 0) return {WaitEnd::peer_fault, seen, r};
        auto const left = deadline_ - std::chrono::steady_clock::now();
        if (!told && left <= std::chrono::nanoseconds(limits.timeout_ns / 2)) {
          publish(limits.long_wait(), 1);
          told = true;
        }
        if (left <= std::chrono::nanoseconds(0)) return {WaitEnd::expired, seen};
      }
    }
  }
  //! @brief True for the first caller only.
  [[nodiscard]] bool claim(std::uint32_t* flag) const noexcept {
    return std::atomic_ref<std::uint32_t>(*flag).exchange(1, std::memory_order_acq_rel) == 0;
  }
  //! @brief A word that another thread may write meanwhile.
  template <class T>
  [[nodiscard]] T peek(const T* p) const noexcept {
    return std::atomic_ref<T>(*const_cast<T*>(p)).load(std::memory_order_acquire);
  }
  [[nodiscard]] std::uint32_t glance(const std::uint32_t* p) const noexcept {
    return std::atomic_ref<std::uint32_t>(*const_cast<std::uint32_t*>(p)).load(std::memory_order_relaxed);
  }
  template <class T>
  void publish(T* p, std::type_identity_t<T> value) const noexcept {
    std::atomic_ref<T>(*p).store(value, std::memory_order_release);
  }

 private:
  static constexpr std::uint32_t kCheckEvery = 16;
  BlockState* state_;
  std::size_t used_ = 0;
  int block_, blocks_, warp_, warps_;
  bool streaming_;
  bool waited_ = false;
  std::chrono::steady_clock::time_point deadline_{};
};
static_assert(KernelContext<Context>);

}  // namespace mori_ep::exec::host
