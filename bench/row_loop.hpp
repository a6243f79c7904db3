// SPDX-License-Identifier: MIT
//! @file Plain loops that read and write as dispatch and combine do, without anything else that those do.
#pragma once

#include <cstddef>

#include "mori_ep/exec/host/rows.hpp"

namespace ep_bench {

//! @brief Rows of one place to five others, or of five (xor of their words) to one: about what 8 experts on 8 ranks make
//!        of a token. Streaming stores, prefetch ahead, a cache line at a time.
class RowLoop {
 public:
  //! @brief Six places in two buffers of `bytes` bytes each.
  RowLoop(std::byte* first, std::byte* second, std::size_t bytes) noexcept {
    std::size_t const place = bytes / kHalf / 4096 * 4096;
    for (std::size_t i = 0; i < 2 * kHalf; ++i) {
      std::byte* const at = i < kHalf ? first + i * place : second + (i - kHalf) * place;
      at_[i] = at + i * 11 * mori_ep::exec::host::kLineBytes;  // a workload's rows begin anywhere in their pages
    }
    if (place > kSlack) bytes_ = place - kSlack;
  }
  //! @brief Read + written by one call of either loop.
  [[nodiscard]] double moved() const noexcept { return 6.0 * static_cast<double>(bytes_); }

  void read1_write5() const noexcept {
    for_each_line([&](std::size_t at) {
      Line const line(at_[0] + at);
      for (int i = 1; i < 6; ++i) line.stream_to(at_[i] + at);
    });
  }
  void read5_write1() const noexcept {
    for_each_line([&](std::size_t at) {
      Line sum(at_[0] + at);
      MORI_EP_UNROLL
      for (int i = 1; i < 5; ++i) sum.add(Line(at_[i] + at));
      sum.stream_to(at_[5] + at);
    });
  }

 private:
  static constexpr std::size_t kHalf = 3, kSlack = 4096;

  struct Line {
    using Words = mori_ep::exec::host::vectors16::Words;
    Words word[4];
    explicit Line(const std::byte* from) noexcept {
      __builtin_prefetch(from + mori_ep::exec::host::kPrefetchBytes);
      MORI_EP_UNROLL
      for (int i = 0; i < 4; ++i) word[i] = reinterpret_cast<const Words*>(from)[i];
    }
    void add(const Line& other) noexcept {
      MORI_EP_UNROLL
      for (int i = 0; i < 4; ++i) word[i] ^= other.word[i];
    }
    void stream_to(std::byte* to) const noexcept {
      using namespace mori_ep::exec::host::vectors16;
      MORI_EP_UNROLL
      for (int i = 0; i < 4; ++i) store_vector<true>(to + 16 * i, as<Bytes>(word[i]));
    }
  };

  template <class F>
  void for_each_line(F&& f) const noexcept {
    for (std::size_t at = 0; at < bytes_; at += mori_ep::exec::host::kLineBytes) f(at);
    mori_ep::exec::host::fence_streaming();
  }

  std::byte* at_[2 * kHalf];
  std::size_t bytes_ = 0;
};

}  // namespace ep_bench
