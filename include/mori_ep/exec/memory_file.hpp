// SPDX-License-Identifier: MIT
//! @file Memory of the host that several processes map: a file that has no name (memfd_create(2)).
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "mori_ep/exec/concepts.hpp"

namespace mori_ep::exec::memory_file {

inline constexpr std::size_t kHugePage = std::size_t{1} << 21;

//! @brief Maps the first `bytes` of a file that has as many, from a multiple of kHugePage on where one would fit; nullptr
//!        when it cannot.
[[nodiscard]] inline std::byte* map(int fd, std::size_t bytes) noexcept {
  struct stat file;
  // Pages past a file's end cannot be touched.
  if (::fstat(fd, &file) != 0 || static_cast<std::size_t>(file.st_size) < bytes) return nullptr;
  auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t const size = (bytes + page - 1) / page * page, before_first = size >= kHugePage ? kHugePage - page : 0;
  void* const room =
      ::mmap(nullptr, before_first + size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(room);
  std::size_t const skipped = (0 - reinterpret_cast<std::uintptr_t>(room)) % kHugePage,
                    before = before_first == 0 ? 0 : skipped, after = before_first - before;
  if (::mmap(begin + before, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    ::munmap(room, before_first + size);
    return nullptr;
  }
  if (before != 0) ::munmap(begin, before);
  if (after != 0) ::munmap(begin + before + size, after);
  ::madvise(begin + before, size, MADV_HUGEPAGE);
  return begin + before;
}

inline void unmap(std::byte* memory, std::size_t bytes) noexcept { ::munmap(memory, bytes); }

//! @brief Is there ever as much memory, and may this process's files be as long? The system takes a file's length on trust
//!        and kills who writes what cannot be had, or, past the limit on files, who asks.
[[nodiscard]] inline bool may_be_had(std::size_t bytes) noexcept {
  struct sysinfo system;
  struct rlimit files;
  if (::sysinfo(&system) == 0 && bytes / system.mem_unit > system.totalram + system.totalswap) return false;
  return ::getrlimit(RLIMIT_FSIZE, &files) != 0 || files.rlim_cur == RLIM_INFINITY || bytes <= files.rlim_cur;
}

//! @brief Zeroed pages, mapped, and their descriptor; nullptr and -1 when there are none.
//!
//! Shared memory is in small pages unless the administrator chose otherwise (shmem_enabled), and rows that all ranks
//! read and write then miss the TLB: a dispatch of 1024 tokens takes a quarter longer. A process may ask for huge ones
//! (MADV_COLLAPSE, Linux 6.1), but gets them at once, also for what it never touches: so it asks for a file that is a
//! small part of the machine's memory only.
[[nodiscard]] inline ShareableMemory create(std::size_t bytes) noexcept {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
  constexpr std::size_t kSmallPart = 64;
  if (!may_be_had(bytes)) return {};
  int const fd = ::memfd_create("mori_ep", MFD_CLOEXEC);
  if (fd < 0) return {};
  std::byte* const memory = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? map(fd, bytes) : nullptr;
  if (memory == nullptr) {
    ::close(fd);
    return {};
  }
  auto const page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)),
             pages = static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES));
  std::size_t const whole = bytes / kHugePage * kHugePage;
  if (whole != 0 && whole / page <= pages / kSmallPart) (void)::madvise(memory, whole, kCollapse);
  return {memory, fd};
}

}  // namespace mori_ep::exec::memory_file
