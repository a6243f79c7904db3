// SPDX-License-Identifier: MIT
//! @file What AMD GPUs do their own way.
#pragma once

#include "mori_ep/exec/gpu/vector.hpp"

#if defined(__HIP__)

namespace mori_ep::exec::gpu {

//! @brief AMD, one wave of 64 (gfx9) or 32 lanes (gfx12).
struct Target {
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
  static constexpr int lanes = 32;
#else
  static constexpr int lanes = 64;
#endif
  using Words = std::uint32_t __attribute__((ext_vector_type(4), may_alias));

  //! A row is read once and written once: both bypass what they can of the caches (dwordx4 nt).
  static __device__ Vec16 load_row(const void* p) {
    return __builtin_bit_cast(Vec16, __builtin_nontemporal_load(static_cast<const Words*>(p)));
  }
  static __device__ void prefetch(const void* p) { __builtin_prefetch(p); }
  static __device__ void store_row(void* p, const Vec16& v) {
    __builtin_nontemporal_store(__builtin_bit_cast(Words, v), static_cast<Words*>(p));
  }
  //! A wave's release covers its own stores only, and __syncthreads waits for none: so every wave writes back and waits
  //! before the block meets. The wait is written out because LLVM up to 22 drops it when nothing else is pending.
  static __device__ void flush_stores() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
    asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
  }
  template <class T>
  static __device__ void store_release_system(T* p, T value) {
    flush_stores();
    __hip_atomic_store(p, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  static __device__ void store_relaxed_system(std::uint64_t* p, std::uint64_t value) {
    __hip_atomic_store(p, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  template <class T>
  static __device__ T load_relaxed_system(const T* p) {
    return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  template <class T>
  static __device__ T load_acquire_system(const T* p) {
    return __hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  static __device__ std::uint32_t add_acq_rel_device(std::uint32_t* p, std::uint32_t value) {
    flush_stores();
    std::uint32_t const before = __hip_atomic_fetch_add(p, value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
    return before;
  }
  static __device__ std::uint32_t exchange_acq_rel_system(std::uint32_t* p, std::uint32_t value) {
    flush_stores();
    return __hip_atomic_exchange(p, value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  //! Counts at 100 MHz on every target so far (s_memrealtime).
  static __device__ std::uint64_t clock_ns() { return __builtin_readsteadycounter() * 10; }
  static __device__ void nap() { __builtin_amdgcn_s_sleep(1); }
  static __device__ int lane() {
    int const low = static_cast<int>(__builtin_amdgcn_mbcnt_lo(~0u, 0u));
    return lanes == 32 ? low : static_cast<int>(__builtin_amdgcn_mbcnt_hi(~0u, static_cast<unsigned>(low)));
  }
  static __device__ void warp_sync() { __builtin_amdgcn_wave_barrier(); }
  static __device__ std::uint64_t ballot(bool vote) { return __ballot(vote); }
  static __device__ std::uint64_t warp_or(std::uint64_t bits) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) bits |= __shfl_xor(static_cast<unsigned long long>(bits), mask);
    return bits;
  }
  //! fp32 products that stay apart from the sum, so that all machines agree on the bits.
  static __device__ float product(float a, float b) {
    float p = a * b;
    asm volatile("" : "+v"(p));
    return p;
  }
};

}  // namespace mori_ep::exec::gpu

#endif
