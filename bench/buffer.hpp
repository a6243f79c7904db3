// SPDX-License-Identifier: MIT
//! @file Large memory, had in the same way for everything that is compared.
#pragma once

#include <cstddef>
#include <cstring>
#include <utility>

#include "mori_ep/exec/host/host.hpp"
#include "no_memory.hpp"

namespace ep_bench {

//! @brief `count` zeroed elements in pages as exec::Host gives them (huge where it can).
template <class T>
class Buffer {
 public:
  Buffer() = default;
  //! @throw NoMemory, which says that `purpose` needs it
  explicit Buffer(std::size_t count, const char* purpose = "a buffer of rows") : count_(count) {
    if (count == 0) return;
    memory_ = mori_ep::exec::Host::allocate(count * sizeof(T));
    if (memory_ == nullptr) throw NoMemory(purpose, count * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~Buffer() {
    if (memory_ != nullptr) mori_ep::exec::Host::release(memory_, bytes());
  }
  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(memory_); }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return count_ * sizeof(T); }
  //! @brief All bits set: NaN in every element type. Also touches the pages.
  void poison() noexcept {
    if (memory_ != nullptr) std::memset(memory_, 0xff, bytes());
  }

 private:
  std::byte* memory_ = nullptr;
  std::size_t count_ = 0;
};

}  // namespace ep_bench
