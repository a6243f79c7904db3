// SPDX-License-Identifier: MIT
//! @file Carving a symmetric arena: the only place where offsets are computed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/exec/attributes.hpp"

namespace mori_ep::comm {

//! @brief A named run of bytes inside an arena; the same on every rank.
struct Region {
  std::size_t offset = 0;
  std::size_t bytes = 0;
  //! @brief The region's first T in the arena that starts at `base`.
  template <class T = std::byte>
  [[nodiscard]] MORI_EP_HD constexpr T* in(std::byte* base) const noexcept {
    return reinterpret_cast<T*>(base + offset);
  }
};

//! @brief Hands out regions one after the other, each aligned; remembers whether a size ever overflowed.
class LayoutBuilder {
 public:
  static constexpr std::size_t kAlign = 256;  // what HIP and CUDA allocations give, and four cache lines

  //! @brief `count` times `bytes_each`, at the next aligned offset.
  constexpr Region add(std::size_t count, std::size_t bytes_each) noexcept {
    std::size_t bytes = 0, rounded = 0;
    overflow_ |= __builtin_mul_overflow(count, bytes_each, &bytes);
    overflow_ |= __builtin_add_overflow(bytes, kAlign - 1, &rounded);
    rounded = rounded / kAlign * kAlign;
    Region const region{end_, bytes};
    overflow_ |= __builtin_add_overflow(end_, rounded, &end_);
    return region;
  }
  [[nodiscard]] constexpr std::size_t bytes() const noexcept { return end_; }
  [[nodiscard]] constexpr bool overflow() const noexcept { return overflow_; }

 private:
  std::size_t end_ = 0;
  bool overflow_ = false;
};

}  // namespace mori_ep::comm
