// SPDX-License-Identifier: MIT
//! @file exec::Host: kernels run on threads of this process.
#pragma once

#include <cstddef>
#include <cstring>
#include <thread>

#include <sys/mman.h>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/host/stream.hpp"

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

  template <class Kernel>
  static void launch(const LaunchGeometry& geometry, const Kernel& kernel, StreamRef stream) {
    stream.get().launch(geometry, kernel);
  }
  static void synchronize(StreamRef stream) { stream.get().synchronize(); }

  static int max_resident(int warps) noexcept { return Stream::kMaxThreads / (warps > 0 ? warps : 1); }
  static int default_blocks(int ranks_in_process) noexcept {
    int const cores = static_cast<int>(std::thread::hardware_concurrency());
    return cores > ranks_in_process ? cores / ranks_in_process : 1;
  }
  static int default_warps() noexcept { return 1; }

  //! @brief Zeroed pages, huge ones where the system gives them; nullptr when it gives none.
  static std::byte* allocate(std::size_t bytes) noexcept {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    ::madvise(memory, bytes, MADV_HUGEPAGE);
    return static_cast<std::byte*>(memory);
  }
  static void release(std::byte* memory, std::size_t bytes) noexcept { ::munmap(memory, bytes); }
  static void copy(void* dst, const void* src, std::size_t bytes) noexcept { std::memcpy(dst, src, bytes); }
};
static_assert(ExecPolicy<Host>);

//! @brief What an operator runs on when its type does not say.
using Default = Host;

}  // namespace mori_ep::exec
