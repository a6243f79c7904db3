// SPDX-License-Identifier: MIT
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "support/machine.hpp"

namespace mori_ep::test {

int prepare_machine() {
  // Ranks that share a device wait for each other inside kernels: every stream needs a hardware queue of its own, and
  // no kernel may be loaded while others wait for it. Both are read when the runtime starts.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int devices = 0;
  auto const error = MORI_EP_RT(GetDeviceCount)(&devices);
  if (error == exec::gpu::kRtSuccess && devices > 0) return 0;
  std::printf("SKIPPED: no %s device on this machine (%s)\n", Machine::kName, MORI_EP_RT(GetErrorString)(error));
  return kSkipped;
}

namespace {

//! Pinned memory in sizes of powers of two, kept for reuse: the runtime takes long over each allocation, and waits for
//! the device at each release.
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
  static void grow(std::size_t size_class, std::vector<std::byte*>& free) {
    std::size_t const piece = std::size_t{1} << (size_class < 8 ? 8 : size_class);
    std::size_t const slab = piece < (std::size_t{4} << 20) ? std::size_t{4} << 20 : piece;
    std::byte* memory = Machine::allocate_board(slab);
    if (memory == nullptr) throw std::bad_alloc();
    free.reserve(free.capacity() + slab / piece);
    for (std::size_t at = 0; at < slab; at += piece) free.push_back(memory + at);
  }

  std::mutex mutex_;
  std::vector<std::byte*> free_[64];
};

PinnedPool& pool() {
  static auto* const kept = new PinnedPool;  // never destroyed: the runtime is gone by then
  return *kept;
}

}  // namespace

std::byte* take_memory(std::size_t bytes) { return pool().take(bytes); }
void give_memory(std::byte* memory, std::size_t bytes) noexcept { pool().give(memory, bytes); }

}  // namespace mori_ep::test
