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

#include <atomic>
#include <cstddef>

namespace mori_ep::exec::gpu {

using RtError = MORI_EP_RT(Error_t);
using RtStream = MORI_EP_RT(Stream_t);
using RtEvent = MORI_EP_RT(Event_t);
inline constexpr RtError kRtSuccess = MORI_EP_RT(Success);

#if defined(__HIP__)
using RtPointerAttributes = hipPointerAttribute_t;
inline bool is_device_memory(const RtPointerAttributes& of) noexcept {
#if HIP_VERSION_MAJOR >= 6
  return of.type == hipMemoryTypeDevice;
#else
  return of.memoryType == hipMemoryTypeDevice;
#endif
}
//! @brief Memory that peers read and write while kernels run. hipMalloc's is coherent at kernel boundaries only: a
//!        peer's rows and signals could stay unseen in a cache. So this is fine-grained.
inline RtError malloc_shared(void** memory, std::size_t bytes) noexcept {
  return hipExtMallocWithFlags(memory, bytes, hipDeviceMallocFinegrained);
}
//! @brief Pinned memory of the host, at one address for the host and every device, coherent while kernels run.
inline RtError malloc_host(void** memory, std::size_t bytes) noexcept {
  return hipHostMalloc(memory, bytes, hipHostMallocMapped | hipHostMallocPortable | hipHostMallocCoherent);
}
inline RtError free_host(void* memory) noexcept { return hipHostFree(memory); }
//! @brief Lanes of a warp of the calling thread's device: the host pass is compiled before it is known.
inline int device_lanes() noexcept {
  static std::atomic<int> known[64] = {};  // by ordinal: asking costs more than a launch should
  int ordinal = 0, lanes = 64;
  if (hipGetDevice(&ordinal) != hipSuccess || ordinal < 0 || ordinal >= 64) ordinal = 0;
  if (int const seen = known[ordinal].load(std::memory_order_relaxed); seen != 0) return seen;
  if (hipDeviceGetAttribute(&lanes, hipDeviceAttributeWarpSize, ordinal) != hipSuccess) return 64;
  known[ordinal].store(lanes, std::memory_order_relaxed);
  return lanes;
}
#else
using RtPointerAttributes = cudaPointerAttributes;
inline bool is_device_memory(const RtPointerAttributes& of) noexcept { return of.type == cudaMemoryTypeDevice; }
inline RtError malloc_shared(void** memory, std::size_t bytes) noexcept { return cudaMalloc(memory, bytes); }
inline RtError malloc_host(void** memory, std::size_t bytes) noexcept {
  return cudaHostAlloc(memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable);
}
inline RtError free_host(void* memory) noexcept { return cudaFreeHost(memory); }
inline int device_lanes() noexcept { return 32; }
#endif

}  // namespace mori_ep::exec::gpu

#endif
