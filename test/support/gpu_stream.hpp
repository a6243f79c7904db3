// SPDX-License-Identifier: MIT
//! @file TestStream on a GPU. All of its work is kernels of one block: the runtime's own copies and host functions pass
//!       through queues that streams share, where one rank's may wait behind another's that waits for that rank.
#pragma once

#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "mori_ep/exec/exec.hpp"

namespace mori_ep::test {

std::byte* take_memory(std::size_t bytes);  // support/machine.hpp
void give_memory(std::byte* memory, std::size_t bytes) noexcept;

inline void expect_success(exec::gpu::RtError error, const char* what) {
  if (error != exec::gpu::kRtSuccess)
    throw std::runtime_error(std::string(what) + ": " + MORI_EP_RT(GetErrorString)(error));
}

//! The two kernels, launched from one translation unit (support/machine_gpu.cpp), which prepares them: one says that
//! the stream has come to turn `turn` and goes on when the host has done it, the other copies.
void enqueue_turn(std::uint32_t* reached, const std::uint32_t* done, std::uint32_t turn, exec::gpu::RtStream stream);
void enqueue_copy(void* to, const void* from, std::size_t bytes, exec::gpu::RtStream stream);

//! @brief Runs functions of the host in turn, each when the stream has come to it, on a thread of its own.
template <class Exec>
class HostTurns {
 public:
  // Memory of the pool: releasing pinned memory waits for every kernel on the device.
  HostTurns() : flags_(reinterpret_cast<std::uint32_t*>(take_memory(kBytes))) {
    flags_[0] = flags_[kApart] = 0;
    worker_ = std::thread([this] { work(); });
  }
  HostTurns(const HostTurns&) = delete;
  HostTurns& operator=(const HostTurns&) = delete;
  //! The stream must be done.
  ~HostTurns() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    worker_.join();
    give_memory(reinterpret_cast<std::byte*>(flags_), kBytes);
  }
  void enqueue(std::function<void()> function, exec::gpu::RtStream stream) {
    {
      std::lock_guard lock(mutex_);
      functions_.push_back(std::move(function));
    }
    changed_.notify_all();
    enqueue_turn(flags_, flags_ + kApart, ++turns_, stream);
  }

 private:
  static constexpr std::size_t kApart = 64, kBytes = 2 * kApart * sizeof(std::uint32_t);

  void work() {
    for (std::uint32_t turn = 1;; ++turn) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !functions_.empty(); });
      if (functions_.empty()) return;
      auto const function = std::move(functions_.front());
      functions_.pop_front();
      lock.unlock();
      while (std::atomic_ref(flags_[0]).load(std::memory_order_acquire) != turn)
        std::this_thread::sleep_for(std::chrono::microseconds(10));
      function();
      std::atomic_ref(flags_[kApart]).store(turn, std::memory_order_release);
    }
  }

  std::uint32_t* flags_;
  std::uint32_t turns_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> functions_;
  bool stop_ = false;
  std::thread worker_;
};

template <class Exec>
class TestStream;
template <class Exec>
requires std::derived_from<Exec, exec::gpu::Gpu>
class TestStream<Exec> {
 public:
  TestStream() = default;
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() { (void)stream_.synchronize(); }
  operator typename Exec::StreamRef() const noexcept { return stream_; }  // NOLINT: wanted wherever a StreamRef is
  [[nodiscard]] auto handle() const noexcept { return stream_.handle(); }
  template <class F>
  void submit(const F& function) {
    turns_.enqueue(function, stream_.handle());
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) enqueue_copy(to, from, bytes, stream_.handle());
  }
  void synchronize() { expect_success(MORI_EP_RT(StreamSynchronize)(stream_.handle()), "stream"); }

 private:
  HostTurns<Exec> turns_;
  typename Exec::Stream stream_;
};

}  // namespace mori_ep::test
