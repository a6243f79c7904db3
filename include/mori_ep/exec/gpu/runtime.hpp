// SPDX-License-Identifier: MIT
//! @file The one layer of runtime names: what CUDA and HIP call the same thing.
#pragma once

#if defined(__HIP__)
#include <hip/hip_runtime.h>
#define MORI_EP_GPU 1
#define MORI_EP_RT(name) hip##name
#define MORI_EP_GRID_CONSTANT
#define MORI_EP_RT_ATTRIBUTE_UNITS hipDeviceAttributeMultiprocessorCount
#define MORI_EP_RT_ATTRIBUTE_SCRATCH hipDeviceAttributeMaxSharedMemoryPerBlock
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#define MORI_EP_GPU 1
#define MORI_EP_RT(name) cuda##name
#define MORI_EP_GRID_CONSTANT __grid_constant__  // its address is that of the parameters themselves
#define MORI_EP_RT_ATTRIBUTE_UNITS cudaDevAttrMultiProcessorCount
#define MORI_EP_RT_ATTRIBUTE_SCRATCH cudaDevAttrMaxSharedMemoryPerBlockOptin
#endif

#if defined(MORI_EP_GPU)

namespace mori_ep::exec::gpu {

using RtError = MORI_EP_RT(Error_t);
using RtStream = MORI_EP_RT(Stream_t);
using RtEvent = MORI_EP_RT(Event_t);
inline constexpr RtError kRtSuccess = MORI_EP_RT(Success);

}  // namespace mori_ep::exec::gpu

#endif
