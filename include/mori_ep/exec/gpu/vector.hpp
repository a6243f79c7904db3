// SPDX-License-Identifier: MIT
//! @file The 16-byte vector that rows move in.
#pragma once

#include "mori_ep/exec/gpu/runtime.hpp"

#if defined(MORI_EP_GPU)

#include <cstdint>

namespace mori_ep::exec::gpu {

struct alignas(16) Vec16 {
  std::uint32_t word[4];
};

}  // namespace mori_ep::exec::gpu

#endif
