// SPDX-License-Identifier: MIT
//! @file exec::Host: kernels run on threads of this process.
#pragma once

#include <cstddef>
#include <cstring>
#include <thread>

#include <sys/mman.h>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/host/stream.hpp"
#include "mori_ep/exec/memory_file.hpp"

namespace mori_ep::exec {

//! @brief The CPU as a machine: a warp is one thread (`lanes == 1`), a block is `warps` threads, memory is the
//! process's.
struct Host {
  static constexpr const char* kName = "host";
  using Stream = host::Stream;
  using Event = host::Event;
  using Context = host::Context;

  //! @brief A stream passed by value, as GPU stream handles are.
  class StreamRef {
   public:
    StreamRef(Stream& stream) noexcept : stream_(&stream) {}  // NOLINT: a Stream is where a StreamRef is wanted
    [[nodiscard]] Stream& get() const noexcept { return *stream_; }

   private:
    Stream* stream_;
  };

  static constexpr bool kFreeWaits = false;

  template <class Kernel>
  static Status launch(const LaunchGeometry& geometry, const Kernel& kernel, StreamRef stream) noexcept {
    stream.get().launch(geometry, kernel);
    return {};
  }
  static Status synchronize(StreamRef stream) noexcept {
    stream.get().synchronize();
    return {};
  }

  static int device_count() noexcept { return 1; }
  static Status use_device(int) noexcept { return {}; }
  static bool capturing() noexcept { return false; }
  static void drain() noexcept {}                       // never needed: launches are counted (kFreeWaits)
  static std::uint64_t device() noexcept { return 0; }  // threads are plenty: ranks share nothing that runs out
  static bool host_reaches(const void*) noexcept { return true; }
  static Dmabuf dmabuf(const void*, std::size_t) noexcept { return {}; }
  static Status share_memory() noexcept { return {}; }
  //! @brief Blocks of a launch are threads of its stream, whatever the kernel.
  template <class Kernel, class SharedBytes>
  static Residency residency(SharedBytes&&) noexcept {
    Residency r{.max_warps = Residency::kMaxWarps};
    for (int warps = 1; warps <= r.max_warps; ++warps) r.blocks[warps] = Stream::kMaxThreads / warps;
    return r;
  }
  static int default_blocks(int resident, int ranks_on_host) noexcept {
    int const cores = static_cast<int>(std::thread::hardware_concurrency());
    int const blocks = cores > ranks_on_host ? cores / ranks_on_host : 1;
    return blocks < resident ? blocks : resident;
  }
  static int default_warps() noexcept { return 1; }

  //! @brief Zeroed pages, huge ones where the system gives them; nullptr when it gives none.
  static std::byte* allocate(std::size_t bytes) noexcept {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    ::madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(memory);
  }
  static void release(std::byte* memory, std::size_t bytes) noexcept { ::munmap(memory, bytes); }
  static std::byte* allocate_board(std::size_t bytes) noexcept { return allocate(bytes); }
  static void release_board(std::byte* memory, std::size_t bytes) noexcept { release(memory, bytes); }
  static bool can_share() noexcept { return true; }
  static ShareableMemory allocate_shareable(std::size_t bytes) noexcept { return memory_file::create(bytes); }
  static void release_shareable(std::byte* memory, std::size_t bytes) noexcept { memory_file::unmap(memory, bytes); }
  static std::byte* map_shared(int fd, std::size_t bytes) noexcept { return memory_file::map(fd, bytes); }
  static void unmap_shared(std::byte* memory, std::size_t bytes) noexcept { memory_file::unmap(memory, bytes); }
  static ShareableMemory allocate_shareable_board(std::size_t bytes) noexcept { return allocate_shareable(bytes); }
  static void release_shareable_board(std::byte* memory, std::size_t bytes) noexcept {
    release_shareable(memory, bytes);
  }
  static std::byte* map_shared_board(int fd, std::size_t bytes) noexcept { return map_shared(fd, bytes); }
  static void unmap_shared_board(std::byte* memory, std::size_t bytes) noexcept { unmap_shared(memory, bytes); }
  template <class Kernel>
  static Status prepare() noexcept {
    return {};
  }
  static int ordinal() noexcept { return 0; }
  static std::uint64_t reachable() noexcept { return ~std::uint64_t{0}; }
  static Status copy(void* dst, const void* src, std::size_t bytes) noexcept {
    if (bytes != 0) std::memcpy(dst, src, bytes);
    return {};
  }
};
static_assert(SharesBetweenProcesses<Host>);

}  // namespace mori_ep::exec
