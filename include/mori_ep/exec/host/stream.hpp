// SPDX-License-Identifier: MIT
//! @file Streams and events of CPU threads: work runs in order, asynchronously, all warps of a launch at once.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mori_ep/exec/host/context.hpp"

namespace mori_ep::exec::host {

//! @brief A point in a stream's work; may be recorded again. Copies share the same point.
class Event {
 public:
  Event() : state_(std::make_shared<State>()) {}
  //! @brief Blocks the calling thread until the work recorded before the event is done.
  void synchronize() const {
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->completed >= state_->recorded; });
  }
  [[nodiscard]] bool done() const {
    std::lock_guard lock(state_->mutex);
    return state_->completed >= state_->recorded;
  }
  //! @brief Microseconds from the completion of `begin` to the completion of `end`; both must be done.
  [[nodiscard]] static double elapsed_us(const Event& begin, const Event& end) {
    return std::chrono::duration<double, std::micro>(end.state_->at - begin.state_->at).count();
  }

 private:
  friend class Stream;
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t recorded = 0, completed = 0;
    std::chrono::steady_clock::time_point at{};
  };
  std::shared_ptr<State> state_;
};

//! @brief An in-order queue of work with a thread of its own, and a crew of threads for launches of several warps.
//!
//! Thread-safe. Up to kQueueDepth pieces of work may be pending; one more blocks the caller until one is done.
//! The first launch of a larger geometry than any before starts threads and allocates scratch, later ones do not.
//! The destructor finishes all pending work: declare a stream after what its work uses.
class Stream {
 public:
  static constexpr std::size_t kQueueDepth = 512;
  static constexpr std::size_t kWorkBytes = 1216;
  static constexpr int kMaxThreads = 1024;
  // Below this many bytes a launch's rows may still be in cache when they are read; above it, stores that read the
  // line first cost a third of the bandwidth (bench/results).
  static constexpr std::size_t kStreamingBytes = std::size_t{1} << 20;

  Stream() : queue_(new Slot[kQueueDepth]), worker_([this] { work(); }) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    worker_.join();
    crew_stop_ = true;
    crew_turn_.fetch_add(1, std::memory_order_release);
    crew_turn_.notify_all();
    for (auto& member : crew_) member.join();
  }

  //! @brief Runs `kernel(context)` in every warp of the geometry, all of them resident together.
  template <class Kernel>
  void launch(const LaunchGeometry& geometry, const Kernel& kernel) {
    enqueue([geometry, kernel](Stream& stream) { stream.run_kernel(geometry, kernel); });
  }
  //! @brief Runs a function of no arguments on the stream's thread: small and trivially copyable, such as a lambda.
  template <class F>
  void submit(const F& function) {
    enqueue([function](Stream&) { function(); });
  }
  void record(const Event& event) {
    auto state = event.state_;
    std::uint64_t turn;
    {
      std::lock_guard lock(state->mutex);
      turn = ++state->recorded;
    }
    enqueue([state, turn](Stream&) {
      {
        std::lock_guard lock(state->mutex);
        state->at = std::chrono::steady_clock::now();
        if (turn > state->completed) state->completed = turn;
      }
      state->changed.notify_all();
    });
  }
  //! @brief Later work of this stream waits for what the event has recorded so far.
  void wait(const Event& event) {
    auto state = event.state_;
    std::uint64_t turn;
    {
      std::lock_guard lock(state->mutex);
      turn = state->recorded;
    }
    enqueue([state, turn](Stream&) {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->completed >= turn; });
    });
  }
  //! @brief Blocks the calling thread until all work enqueued so far is done.
  void synchronize() {
    std::unique_lock lock(mutex_);
    auto const target = pushed_;
    changed_.wait(lock, [&] { return done_ >= target; });
  }

 private:
  struct Slot {
    alignas(64) std::byte storage[kWorkBytes];
    void (*run)(Stream&, std::byte*) = nullptr;
  };

  template <class F>
  void enqueue(F&& function) {
    using Work = std::decay_t<F>;
    static_assert(sizeof(Work) <= kWorkBytes && alignof(Work) <= 64,
                  "exec::host::Stream: the work does not fit a queue slot. Pass large arguments by pointer.");
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return pushed_ - done_ < kQueueDepth; });
    Slot& slot = queue_[pushed_ % kQueueDepth];
    ::new (static_cast<void*>(slot.storage)) Work(std::forward<F>(function));
    slot.run = [](Stream& stream, std::byte* storage) {
      auto* work = std::launder(reinterpret_cast<Work*>(storage));
      (*work)(stream);
      work->~Work();
    };
    ++pushed_;
    lock.unlock();
    changed_.notify_all();
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return closing_ || done_ < pushed_; });
      if (done_ == pushed_) return;
      Slot& slot = queue_[done_ % kQueueDepth];
      lock.unlock();
      slot.run(*this, slot.storage);
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  template <class Kernel>
  void run_kernel(const LaunchGeometry& geometry, const Kernel& kernel) {
    bool const streaming = geometry.traffic_bytes >= kStreamingBytes;
    prepare(geometry);
    int const threads = geometry.blocks * geometry.warps;
    auto const body = [&](int member) {
      int const block = member / geometry.warps;
      Context context(blocks_[static_cast<std::size_t>(block)], block, geometry.blocks, member % geometry.warps,
                      geometry.warps, streaming);
      kernel(context);
      context.flush_stores();  // the end of a launch publishes its stores to the work after it
    };
    if (threads == 1) {
      body(0);
      return;
    }
    crew_body_ = &body;
    crew_run_ = [](const void* f, int member) {
      (*static_cast<const std::remove_cvref_t<decltype(body)>*>(f))(member);
    };
    crew_threads_ = threads;
    // Every member reports, also one without a part: none can still be reading these fields when the next launch writes
    // them. The turn's release publishes them, the count's release sequence returns what the members wrote.
    crew_busy_.store(static_cast<int>(crew_.size()), std::memory_order_relaxed);
    crew_turn_.fetch_add(1, std::memory_order_release);
    crew_turn_.notify_all();
    body(0);
    for (Backoff backoff; crew_busy_.load(std::memory_order_acquire) != 0;) backoff.pause();
  }

  void prepare(const LaunchGeometry& geometry) {
    auto const blocks = static_cast<std::size_t>(geometry.blocks);
    if (blocks_capacity_ < blocks) {
      blocks_.reset(new BlockState[blocks]);
      blocks_capacity_ = blocks;
      scratch_block_bytes_ = 0;
    }
    std::size_t const rounded = (geometry.shared_bytes + 63) / 64 * 64;
    if (scratch_block_bytes_ < rounded) {
      scratch_.resize(rounded * blocks_capacity_ + 64);
      scratch_block_bytes_ = rounded;
      auto base = reinterpret_cast<std::uintptr_t>(scratch_.data());
      base = (base + 63) / 64 * 64;
      for (std::size_t b = 0; b < blocks_capacity_; ++b)
        blocks_[b].scratch = reinterpret_cast<std::byte*>(base + b * rounded);
    }
    // A new member starts from the turn of now, so that it takes part in the coming launch and in no earlier one.
    while (static_cast<int>(crew_.size()) < geometry.blocks * geometry.warps - 1) {
      int const index = static_cast<int>(crew_.size()) + 1;
      crew_.emplace_back(
          [this, index, turn = crew_turn_.load(std::memory_order_relaxed)] { crew_member(index, turn); });
    }
  }

  void crew_member(int index, std::uint32_t turn) {
    for (;;) {
      crew_turn_.wait(turn, std::memory_order_acquire);
      std::uint32_t const now = crew_turn_.load(std::memory_order_acquire);
      if (now == turn) continue;
      turn = now;
      if (crew_stop_) return;
      if (index < crew_threads_) crew_run_(crew_body_, index);
      crew_busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::unique_ptr<Slot[]> queue_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t pushed_ = 0, done_ = 0;
  bool closing_ = false;

  std::unique_ptr<BlockState[]> blocks_;
  std::size_t blocks_capacity_ = 0, scratch_block_bytes_ = 0;
  std::vector<std::byte> scratch_;

  std::vector<std::thread> crew_;
  std::atomic<std::uint32_t> crew_turn_{0};
  std::atomic<int> crew_busy_{0};
  bool crew_stop_ = false;
  int crew_threads_ = 0;
  const void* crew_body_ = nullptr;
  void (*crew_run_)(const void*, int) = nullptr;
  std::thread worker_;  // last: it starts when all the rest is there
};

}  // namespace mori_ep::exec::host
