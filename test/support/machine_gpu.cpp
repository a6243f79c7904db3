// SPDX-License-Identifier: MIT
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "support/machine_gpu.hpp"
#include "support/process_world.hpp"
#include "support/processes.hpp"
#include "support/shared_pool.hpp"

namespace mori_ep::test {

namespace {

__global__ void await_host(volatile std::uint32_t* reached, const volatile std::uint32_t* done, std::uint32_t turn) {
  __threadfence_system();  // the host sees what the stream did before
  *reached = turn;
  while (*done != turn) {
  }
  __threadfence_system();
}
__global__ void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) {
  bool const words = ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % 16) == 0;
  std::size_t const vectors = words ? bytes / 16 : 0;
  for (std::size_t i = threadIdx.x; i < vectors; i += blockDim.x)
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  for (std::size_t i = 16 * vectors + threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

//! Lets them start beside the operator's kernels, which may wait for them (Gpu::prepare).
void prepare_stream_kernels() {
#if !defined(__HIP__)
  for (const void* kernel : {reinterpret_cast<const void*>(&await_host), reinterpret_cast<const void*>(&copy_bytes)})
    expect_success(
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "division of a multiprocessor's memory");
#endif
}

}  // namespace

void enqueue_turn(std::uint32_t* reached, const std::uint32_t* done, std::uint32_t turn, exec::gpu::RtStream stream) {
  await_host<<<1, 1, 0, stream>>>(reached, done, turn);
  expect_success(MORI_EP_RT(GetLastError)(), "host function");
}
void enqueue_copy(void* to, const void* from, std::size_t bytes, exec::gpu::RtStream stream) {
  copy_bytes<<<1, 256, 0, stream>>>(static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes);
  expect_success(MORI_EP_RT(GetLastError)(), "copy");
}

namespace {

//! 0 when there is a device.
int look_for_device() {
  int devices = 0;
  auto const error = MORI_EP_RT(GetDeviceCount)(&devices);
  if (error == exec::gpu::kRtSuccess && devices > 0) return 0;
  std::printf("SKIPPED: no %s device on this machine (%s)\n", Machine::kName, MORI_EP_RT(GetErrorString)(error));
  std::fflush(stdout);
  return kSkipped;
}
//! What the runtime may do only while no kernel waits for another.
void prepare_devices() {
  for (int device = Machine::device_count() - 1; device >= 0; --device) {
    Machine::use_device(device).or_throw();
    prepare_stream_kernels();
  }
  give_memory(take_memory(1), 1);
}

}  // namespace

int prepare_machine() {
  // Ranks that share a device wait for each other inside kernels: every stream needs a hardware queue of its own, and
  // no kernel may be loaded while others wait for it. Both are read when the runtime starts.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  if (ranks_are_processes()) {
    // Forks cannot use a runtime that their parent has started.
    int const status = Fork([] { std::_Exit(look_for_device()); }).wait();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  int const status = look_for_device();
  if (status == 0) prepare_devices();
  return status;
}

void begin_process() {
  auto const shared = shared_pool().used();
  if (!shared.empty())
    expect_success(MORI_EP_RT(HostRegister)(shared.data(), shared.size(),
                                            MORI_EP_RT(HostRegisterMapped) | MORI_EP_RT(HostRegisterPortable)),
                   "pinning the memory that ranks share");
  prepare_devices();
}

namespace {

//! Pinned memory in sizes of powers of two, kept for reuse and taken from large slabs: an allocation may hold back
//! kernels of other streams, and a release waits for the device.
class PinnedPool {
 public:
  std::byte* take(std::size_t bytes) {
    std::lock_guard lock(mutex_);
    auto& free = free_[size_class(bytes)];
    if (free.empty()) grow(size_class(bytes), free);
    std::byte* memory = free.back();
    free.pop_back();
    return memory;
  }
  void give(std::byte* memory, std::size_t bytes) noexcept {
    std::lock_guard lock(mutex_);
    free_[size_class(bytes)].push_back(memory);
  }

 private:
  static std::size_t size_class(std::size_t bytes) {
    return static_cast<std::size_t>(std::bit_width((bytes == 0 ? 1 : bytes) - 1));
  }
  void grow(std::size_t size_class, std::vector<std::byte*>& free) {
    std::size_t const piece = std::size_t{1} << (size_class < 8 ? 8 : size_class);
    std::size_t const pieces = piece < kRun ? kRun / piece : 1;
    if (pieces * piece > left_) {
      left_ = std::max(ranks_are_processes() ? kSlabOfProcess : kSlab, piece);
      at_ = Machine::allocate_board(left_);
      if (at_ == nullptr) throw std::bad_alloc();
    }
    free.reserve(free.capacity() + pieces);
    for (std::size_t i = 0; i < pieces; ++i) free.push_back(at_ + i * piece);
    at_ += pieces * piece;
    left_ -= pieces * piece;
  }

  static constexpr std::size_t kRun = std::size_t{1} << 20, kSlab = std::size_t{1} << 30,
                               kSlabOfProcess = std::size_t{1} << 26;
  std::byte* at_ = nullptr;
  std::size_t left_ = 0;
  std::mutex mutex_;
  std::vector<std::byte*> free_[64];
};

PinnedPool& pool() {
  static auto* const kept = new PinnedPool;  // never destroyed: the runtime is gone by then
  return *kept;
}

}  // namespace

std::byte* take_memory(std::size_t bytes) {
  return ranks_are_processes() && !ProcessWorld::in_child() ? shared_pool().take(bytes) : pool().take(bytes);
}
void give_memory(std::byte* memory, std::size_t bytes) noexcept {
  if (!ranks_are_processes() || !shared_pool().has(memory)) return pool().give(memory, bytes);
  if (!ProcessWorld::in_child()) shared_pool().give(memory, bytes);
}

const void* mark_kernel_elsewhere() { return exec::gpu::entry_of<MarkKernel>(); }
Status launch_mark_elsewhere(const exec::LaunchGeometry& geometry, const MarkKernel& kernel,
                             Machine::StreamRef stream) {
  return Machine::launch(geometry, kernel, stream);
}

}  // namespace mori_ep::test
