// SPDX-License-Identifier: MIT
//! @file What the tests need of a machine beside its exec policy: streams that run functions and copies, and memory that
//!       both the tests and kernels reach.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/exec/exec.hpp"

namespace mori_ep::test {

//! @brief Called first in main(): 0 when the tests can run, else the exit status that says why not (kSkipped).
int prepare_machine();
inline constexpr int kSkipped = 77;

//! @brief Memory for operands, at a multiple of 256 bytes: the process's on the host, pinned where kernels of a GPU read
//!        and write it. Defined by the executable (machine.cpp, machine_gpu.cpp), so that objects can be shared.
std::byte* take_memory(std::size_t bytes);
void give_memory(std::byte* memory, std::size_t bytes) noexcept;

template <class T>
struct MachineAllocator {
  using value_type = T;
  MachineAllocator() = default;
  template <class U>
  MachineAllocator(const MachineAllocator<U>&) noexcept {}  // NOLINT: allocators convert
  T* allocate(std::size_t n) { return reinterpret_cast<T*>(take_memory(n * sizeof(T))); }
  void deallocate(T* p, std::size_t n) noexcept { give_memory(reinterpret_cast<std::byte*>(p), n * sizeof(T)); }
  friend bool operator==(const MachineAllocator&, const MachineAllocator&) { return true; }
};
//! @brief A vector whose elements kernels reach.
template <class T>
using Vector = std::vector<T, MachineAllocator<T>>;

//! @brief A stream on which a test runs functions and copies between its own memory and the operator's, in order.
template <class Exec>
class TestStream;

template <>
class TestStream<exec::Host> {
 public:
  operator exec::Host::StreamRef() noexcept { return stream_; }  // NOLINT: wanted wherever a StreamRef is
  template <class F>
  void submit(const F& function) {
    stream_.submit(function);
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) submit([=] { std::memcpy(to, from, bytes); });
  }
  void synchronize() { stream_.synchronize(); }

 private:
  exec::Host::Stream stream_;
};

#if defined(MORI_EP_GPU)
inline void expect_success(exec::gpu::RtError error, const char* what) {
  if (error != exec::gpu::kRtSuccess)
    throw std::runtime_error(std::string(what) + ": " + MORI_EP_RT(GetErrorString)(error));
}

//! Functions run on a thread of the GPU's runtime and call nothing of it. Copies go through the copy engines, which no
//! spinning kernel keeps busy.
template <class Exec>
requires std::derived_from<Exec, exec::gpu::Gpu>
class TestStream<Exec> {
 public:
  TestStream() {
    for (auto& mark : marks_)
      expect_success(MORI_EP_RT(EventCreateWithFlags)(&mark, MORI_EP_RT(EventDisableTiming)), "event");
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() {
    for (auto& mark : marks_) (void)MORI_EP_RT(EventDestroy)(mark);
  }
  operator typename Exec::StreamRef() {  // NOLINT: wanted wherever a StreamRef is
    bound_run_ahead();
    return stream_;
  }
  [[nodiscard]] auto handle() const noexcept { return stream_.handle(); }
  template <class F>
  void submit(const F& function) {
    bound_run_ahead();
    auto work = std::make_unique<F>(function);
    auto const run = [](void* p) { (*std::unique_ptr<F>(static_cast<F*>(p)))(); };
    expect_success(MORI_EP_RT(LaunchHostFunc)(stream_.handle(), run, work.get()), "host function");
    (void)work.release();
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    bound_run_ahead();
    if (bytes != 0)
      expect_success(MORI_EP_RT(MemcpyAsync)(to, from, bytes, MORI_EP_RT(MemcpyDefault), stream_.handle()), "copy");
  }
  void synchronize() { expect_success(MORI_EP_RT(StreamSynchronize)(stream_.handle()), "stream"); }

 private:
  //! A full queue blocks every thread of the process, also those of the ranks that would empty it: so a rank waits before.
  void bound_run_ahead() {
    constexpr int kBetweenMarks = 128;
    if (++enqueued_ % kBetweenMarks != 0) return;
    auto& mark = marks_[enqueued_ / kBetweenMarks % 2];
    expect_success(MORI_EP_RT(EventSynchronize)(mark), "event");  // of two marks ago; done when never recorded
    expect_success(MORI_EP_RT(EventRecord)(mark, stream_.handle()), "event");
  }

  typename Exec::Stream stream_;
  exec::gpu::RtEvent marks_[2] = {};
  int enqueued_ = 0;
};
#endif

using Machine = exec::Default;
using Stream = TestStream<Machine>;

//! @brief A value that lies where only kernels can read it.
template <class T>
T read(const T* from) {
  T value;
  Machine::copy(&value, from, sizeof(T));
  return value;
}

}  // namespace mori_ep::test
