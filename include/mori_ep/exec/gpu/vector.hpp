// SPDX-License-Identifier: MIT
//! @file The vectors that rows move in.
#pragma once

#include "mori_ep/exec/gpu/runtime.hpp"

#if defined(MORI_EP_GPU)

#include <cstdint>

namespace mori_ep::exec::gpu {

struct alignas(16) Vec16 {
  std::uint32_t word[4];
};
struct Vec4 {
  std::uint32_t word[1];
};
struct alignas(8) Vec8 {
  std::uint32_t word[2];
};

//! @brief Bytes of a row are counted in 32 bits: rows are far shorter than 4 GiB, and a register is saved per address.
using RowBytes = std::uint32_t;

}  // namespace mori_ep::exec::gpu

#endif
