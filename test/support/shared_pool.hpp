// SPDX-License-Identifier: MIT
//! @file Memory of the tests that ranks share when they are forks.
#pragma once

#include <bit>
#include <cstddef>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include <sys/mman.h>

namespace mori_ep::test {

//! @brief Memory that ranks share when they are forks: taken before the fork, in sizes of powers of two, from one reservation.
class SharedPool {
 public:
  std::byte* take(std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    auto& free = free_[size_class(bytes)];
    if (free.empty()) {
      std::size_t const piece = std::size_t{1} << size_class(bytes);
      if (piece > left_) throw std::bad_alloc();
      free.push_back(at_);
      at_ += piece;
      left_ -= piece;
    }
    std::byte* const memory = free.back();
    free.pop_back();
    return memory;
  }
  void give(std::byte* memory, std::size_t bytes) noexcept {
    std::lock_guard const lock(mutex_);
    free_[size_class(bytes)].push_back(memory);
  }
  //! @brief All that was ever taken.
  [[nodiscard]] std::span<std::byte> used() const noexcept { return {begin_, at_}; }
  [[nodiscard]] bool has(const std::byte* memory) const noexcept {
    return memory >= begin_ && memory < begin_ + kReserved;
  }

 private:
  static std::size_t size_class(std::size_t bytes) {
    return static_cast<std::size_t>(std::bit_width((bytes < 256 ? std::size_t{256} : bytes) - 1));
  }
  static std::byte* reserve() {
    void* const memory =
        ::mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<std::byte*>(memory);
  }
  std::mutex mutex_;  // some tests have ranks that are threads whatever plans are played with
  static constexpr std::size_t kReserved = std::size_t{1} << 38;
  std::byte* begin_ = reserve();
  std::byte* at_ = begin_;
  std::size_t left_ = kReserved;
  std::vector<std::byte*> free_[64];
};

inline SharedPool& shared_pool() {
  static SharedPool pool;
  return pool;
}

}  // namespace mori_ep::test
