// SPDX-License-Identifier: MIT
//! @file What the tests need of a machine beside its exec policy: streams that run functions and copies, and memory
//!       that both the tests and kernels reach.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "mori_ep/exec/exec.hpp"
#if defined(MORI_EP_GPU)
#include "support/gpu_stream.hpp"
#endif

namespace mori_ep::test {

//! @brief Called first in main(): 0 when the tests can run, else the exit status that says why not (kSkipped).
int prepare_machine();
inline constexpr int kSkipped = 77;
//! @brief Called first in a rank's own process: what it shares with the others becomes memory that its kernels reach.
void begin_process();

//! @brief Memory for operands, at a multiple of 256 bytes: the process's on the host, pinned where kernels of a GPU
//!        read and write it. Defined by the executable (machine.cpp, machine_gpu.cpp), so that objects can be shared.
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

//! @brief Device memory of no content (Exec::allocate gives zeroes). For GPUs.
template <class Exec>
std::byte* allocate_raw(std::size_t bytes);

#if defined(MORI_EP_GPU)
template <class Exec>
std::byte* allocate_raw(std::size_t bytes) {
  void* memory = nullptr;
  expect_success(exec::gpu::malloc_shared(&memory, bytes), "device memory");
  return static_cast<std::byte*>(memory);
}
#endif

using Machine = exec::Default;
using Stream = TestStream<Machine>;

//! @brief Spreads a world's ranks over all devices that there are, neighbours together: the calling thread's calls are
//!        `rank`'s from now on.
template <class Exec>
void settle(int rank, int world) {
  Exec::use_device(rank * Exec::device_count() / world).or_throw();
}

//! @brief Copies at once, to or from memory that perhaps only kernels can reach. Before or after all ranks' kernels.
template <class Exec = Machine>
void copy_now(void* to, const void* from, std::size_t bytes) {
  Exec::copy(to, from, bytes).or_throw();
}
//! @brief A value that lies where only kernels can read it. Also while kernels of other ranks wait.
template <class T>
T read(const T* from) {
  Vector<T> value(1);
  Stream stream;
  stream.copy(value.data(), from, sizeof(T));
  stream.synchronize();
  return value[0];
}

}  // namespace mori_ep::test
