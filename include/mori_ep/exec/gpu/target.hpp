// SPDX-License-Identifier: MIT
//! @file What differs between GPU targets, in one trait: warp width, memory order, clocks, cache hints.
#pragma once

#include "mori_ep/exec/gpu/runtime.hpp"

#if defined(MORI_EP_GPU)

#include <cstdint>

namespace mori_ep::exec::gpu {

struct alignas(16) Vec16 {
  std::uint32_t word[4];
};

#if defined(__HIP__)

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

#else

//! @brief NVIDIA, sm_80 and later; tuned on sm_90.
struct Target {
  static constexpr int lanes = 32;

  //! Rows are read once: past the first-level cache, first to leave the second.
  static __device__ Vec16 load_row(const void* p) {
    Vec16 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "l"(p)
                 : "memory");
    return v;
  }
  static __device__ void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
  static __device__ void store_row(void* p, const Vec16& v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                 "r"(v.word[3])
                 : "memory");
  }
  //! PTX releases are cumulative: one thread's release after the block has met covers the whole block's stores.
  static __device__ void flush_stores() {}
  static __device__ void store_release_system(std::uint64_t* p, std::uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
  }
  static __device__ void store_release_system(std::uint32_t* p, std::uint32_t value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
  }
  static __device__ void store_relaxed_system(std::uint64_t* p, std::uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(value) : "memory");
  }
  static __device__ std::uint64_t load_relaxed_system(const std::uint64_t* p) {
    std::uint64_t v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  static __device__ std::uint32_t load_relaxed_system(const std::uint32_t* p) {
    std::uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  static __device__ std::uint64_t load_acquire_system(const std::uint64_t* p) {
    std::uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
  }
  static __device__ std::uint32_t load_acquire_system(const std::uint32_t* p) {
    std::uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
  }
  static __device__ std::uint32_t add_acq_rel_device(std::uint32_t* p, std::uint32_t value) {
    std::uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(value) : "memory");
    return before;
  }
  static __device__ std::uint32_t exchange_acq_rel_system(std::uint32_t* p, std::uint32_t value) {
    std::uint32_t before;
    asm volatile("atom.exch.acq_rel.sys.global.b32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(value) : "memory");
    return before;
  }
  static __device__ std::uint64_t clock_ns() {
    std::uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
  }
  static __device__ void nap() { __nanosleep(20); }
  static __device__ int lane() { return static_cast<int>(threadIdx.x % 32u); }
  static __device__ void warp_sync() { __syncwarp(); }
  static __device__ std::uint64_t ballot(bool vote) { return __ballot_sync(~0u, vote); }
  static __device__ std::uint64_t warp_or(std::uint64_t bits) {
    std::uint64_t const high = __reduce_or_sync(~0u, static_cast<std::uint32_t>(bits >> 32));
    return (high << 32) | __reduce_or_sync(~0u, static_cast<std::uint32_t>(bits));
  }
  static __device__ float product(float a, float b) { return __fmul_rn(a, b); }
};

#endif

}  // namespace mori_ep::exec::gpu

#endif
