// SPDX-License-Identifier: MIT
//! @file exec::Cuda: kernels run on NVIDIA GPUs.
#pragma once

#if defined(__CUDACC__) && !defined(__HIP__)

#include "mori_ep/exec/gpu/gpu.hpp"

namespace mori_ep::exec {

//! @brief NVIDIA GPUs; a warp is 32 lanes. The StreamRef is a cudaStream_t of the current device.
struct Cuda : gpu::Gpu {
  static constexpr const char* kName = "cuda";
};
static_assert(SharesBetweenProcesses<Cuda>);

}  // namespace mori_ep::exec

#endif
