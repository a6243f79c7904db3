// SPDX-License-Identifier: MIT
// Kernels that code_objects.sh must reject, one for each of its rules, and one that it must not.
#include <hip/hip_runtime.h>

#include <cstdint>

using Words = std::uint32_t __attribute__((ext_vector_type(4)));
using TwoWords = std::uint32_t __attribute__((ext_vector_type(2)));

__device__ void write_back() {
#if defined(__GFX12__)
  asm volatile("global_wb scope:SCOPE_SYS" ::: "memory");
#elif defined(__gfx90a__)
  asm volatile("buffer_wbl2" ::: "memory");
#else
  asm volatile("buffer_wbl2 sc0 sc1" ::: "memory");
#endif
}
__device__ void wait_for_stores() {
#if defined(__GFX12__)
  asm volatile("s_wait_storecnt 0x0" ::: "memory");
#else
  asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
}

__global__ void good(const Words* from, Words* to, std::uint32_t* flag) {
  __builtin_nontemporal_store(__builtin_nontemporal_load(from), to);
  write_back();
  wait_for_stores();
  __hip_atomic_store(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
__global__ void store_after_write_back(std::uint32_t* flag) {
  write_back();
  __hip_atomic_store(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
__global__ void branch_after_write_back(std::uint32_t* flag, int times) {
  for (int i = 0; i < times; ++i) {
    asm volatile("" ::: "memory");
    write_back();
  }
  wait_for_stores();
  __hip_atomic_store(flag, 1u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
//! The release that a compiler makes by itself.
__global__ void plain_release(std::uint32_t* flag) {
  __hip_atomic_store(flag, 1u, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
__global__ void with_scratch(const int* from, int* to) {
  volatile int local[64];
  for (int i = 0; i < 64; ++i) local[i] = from[i];
  *to = local[*to];
}
__global__ __attribute__((amdgpu_num_sgpr(32))) void with_spills(const std::uint64_t* from, std::uint64_t* to) {
  std::uint64_t value[32];
  for (int i = 0; i < 32; ++i) value[i] = from[i];
  asm volatile("" ::: "memory");
  for (int i = 0; i < 32; ++i) asm volatile("" ::"s"(value[i]));
  *to = value[0];
}
__global__ void narrow_row(const TwoWords* from, TwoWords* to) { *to = __builtin_nontemporal_load(from + threadIdx.x); }
__global__ void flat_row(Words* to) {
  __shared__ Words* target;
  target = to;
  __syncthreads();
  __builtin_nontemporal_store(Words{}, target);
}
struct DispatchKernel {};
template <class Kernel>
__global__ void entry(Kernel, int* to) {
  *to = 1;
}
template __global__ void entry(DispatchKernel, int*);
