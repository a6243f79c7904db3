// SPDX-License-Identifier: MIT
//! @file What a Loopback has kernels carry where threads of the host reach no arena.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/exec/attributes.hpp"

namespace mori_ep::fabric::loopback {

//! @brief A request with addresses: a run of bytes, a word behind it, and a word that says that it has ended.
struct Errand {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;        //!< 0: nothing but the signal
  std::uint64_t* word = nullptr;  //!< nullptr: no signal
  std::uint64_t signal = 0;
  std::uint64_t* ended = nullptr;
  std::uint64_t end = 0;  //!< what is written there
};

//! @brief A block for each errand.
//!
//! Order     the bytes were published to the host before it launched this, so any thread here may read them. Each warp
//!           flushes its stores, the block meets, and one lane releases the signal at system scope: whoever acquires
//!           it sees the bytes. It then releases `ended`: who acquires that may write the source again.
struct CarryKernel {
  static constexpr int kMost = 20;  // errands of a launch, whose arguments a host stream keeps in a slot
  Errand errands[kMost];

  template <class Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    const Errand& errand = errands[ctx.block()];
    copy(ctx, errand);
    ctx.flush_stores();
    ctx.block_sync();
    if (ctx.warp() != 0 || ctx.lane() != 0) return;
    if (errand.word != nullptr) ctx.publish(errand.word, errand.signal);
    ctx.publish(errand.ended, errand.end);
  }

 private:
  //! Rows count their bytes in 32 bits; runs that are not aligned to 16, and what is no multiple of it, go byte by byte.
  template <class Ctx>
  MORI_EP_HD static void copy(Ctx& ctx, const Errand& errand) {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 30;
    bool const aligned =
        (reinterpret_cast<std::uintptr_t>(errand.to) | reinterpret_cast<std::uintptr_t>(errand.from)) % 16 == 0;
    std::uint64_t const whole = aligned ? errand.bytes / 16 * 16 : 0;
    for (std::uint64_t at = 0; at < whole; at += kPiece) {
      std::byte* const to = errand.to + at;
      ctx.multicast_row(
          errand.from + at, &to, [] { return 1; }, static_cast<std::size_t>(whole - at < kPiece ? whole - at : kPiece),
          ctx.warp(), ctx.warps());
    }
    auto const threads = static_cast<std::uint64_t>(ctx.warps() * Ctx::lanes);
    for (std::uint64_t at = whole + static_cast<std::uint64_t>(ctx.warp() * Ctx::lanes + ctx.lane()); at < errand.bytes;
         at += threads)
      ctx.store(errand.to + at, ctx.load(errand.from + at));
  }
};

}  // namespace mori_ep::fabric::loopback
