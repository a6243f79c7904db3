// SPDX-License-Identifier: MIT
//! @file exec::Hip: kernels run on AMD GPUs.
#pragma once

#if defined(__HIP__)

#include "mori_ep/exec/gpu/gpu.hpp"

namespace mori_ep::exec {

//! @brief AMD GPUs; a warp is a wave of 64 lanes, from gfx10 on of 32. The StreamRef is a hipStream_t of the current
//!        device.
struct Hip : gpu::Gpu {
  static constexpr const char* kName = "hip";
};
static_assert(SharesBetweenProcesses<Hip>);

}  // namespace mori_ep::exec

#endif
