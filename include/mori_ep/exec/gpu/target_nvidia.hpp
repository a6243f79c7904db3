// SPDX-License-Identifier: MIT
//! @file What NVIDIA GPUs do their own way.
#pragma once

#include "mori_ep/exec/conversions.hpp"
#include "mori_ep/exec/gpu/vector.hpp"
#include "mori_ep/numeric/coded_row.hpp"

#if defined(__CUDACC__) && !defined(__HIP__)

namespace mori_ep::exec::gpu {

//! @brief NVIDIA, sm_80 and later; tuned on sm_90.
struct Target {
  static constexpr int lanes = 32;
  //! @brief What __launch_bounds__ takes second: blocks per multiprocessor.
  static constexpr int least_resident(int, int blocks_per_unit) { return blocks_per_unit; }

  template <class K>
  static __device__ const K& operand(const K& kernel) {
    return kernel;
  }
  template <class T>
  static __device__ T* scratch(std::byte* p) {
    return reinterpret_cast<T*>(p);
  }
  template <class T>
  static __device__ T load(const T* p) {
    return *p;
  }
  template <class T>
  static __device__ void store(T* p, const T& value) {
    *p = value;
  }

  //! Rows are read once: past the first-level cache. They are written as anything else: streaming stores are no faster,
  //! and whoever reads them next finds some in the second-level cache.
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
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]), "r"(v.word[2]),
                 "r"(v.word[3])
                 : "memory");
  }
  //! 16-byte copies to shared memory that a thread asks for now and waits for later (sm_80): in groups, oldest first.
  static __device__ std::uint32_t shared_address(const void* p) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
  }
  static __device__ void copy_row_async(std::uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  }
  static __device__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int Pending>
  static __device__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
  }
  static __device__ Vec16 load_shared(std::uint32_t from) {
    Vec16 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(from)
                 : "memory");
    return v;
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
  //! The launch itself is ordered behind the stream's earlier work, for peers too: the store needs no fence.
  static __device__ void store_after_launch(std::uint64_t* p, std::uint64_t value) { store_relaxed_system(p, value); }
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
  static __device__ int warp() { return static_cast<int>(threadIdx.x) / lanes; }
  static __device__ int warps() { return static_cast<int>(blockDim.x) / lanes; }
  static __device__ void warp_sync() { __syncwarp(); }
  static __device__ std::uint64_t ballot(bool vote) { return __ballot_sync(~0u, vote); }
  static __device__ std::uint32_t from_lane_0(std::uint32_t value) { return __shfl_sync(~0u, value, 0); }
  static __device__ std::uint32_t from_lane_xor(std::uint32_t value, int mask) {
    return __shfl_xor_sync(~0u, value, mask);
  }
  static __device__ float product(float a, float b) { return __fmul_rn(a, b); }
  //! IEEE, whatever -prec-div says: machines agree on scales.
  static __device__ float reciprocal(float a) { return __frcp_rn(a); }

  //! A row that is read in pieces by halves: the second half is in the first-level cache.
  static __device__ Vec16 load_row_piece(const void* p) { return *static_cast<const Vec16*>(p); }
  static __device__ Vec8 load_row_half(const void* p) {
    Vec8 v;
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
                 : "=r"(v.word[0]), "=r"(v.word[1])
                 : "l"(p)
                 : "memory");
    return v;
  }
  static __device__ void store_row(void* p, const Vec8& v) {
    asm volatile("st.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]) : "memory");
  }
  template <int Bytes>
  static __device__ void copy_piece_async(std::uint32_t to, const void* from) {
    static_assert(Bytes == 4 || Bytes == 8);
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(Bytes) : "memory");
  }
  static __device__ Vec8 load_shared_half(std::uint32_t from) {
    Vec8 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "r"(from) : "memory");
    return v;
  }
  static __device__ std::uint32_t load_shared_word(std::uint32_t from) {
    std::uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
  }

  template <Code C>
  static constexpr bool converts() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    return converts_by_instruction<C>(ConversionTarget::sm_89);
#else
    return converts_by_instruction<C>(ConversionTarget::sm_80);
#endif
  }
  //! Two codes by an instruction, through fp16, which holds every fp8 exactly.
  template <Code C>
  static __device__ void unpack(std::uint32_t word, float* out) {
    for (int i = 0; i < 2; ++i) {
      auto const pair = static_cast<std::uint16_t>(word >> (16 * i));
      std::uint32_t halves;
      if constexpr (std::same_as<C, fp8_e4m3>)
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(pair));
      else
        asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(pair));
      for (int j = 0; j < 2; ++j)
        asm("cvt.f32.f16 %0, %1;" : "=f"(out[2 * i + j]) : "h"(static_cast<std::uint16_t>(halves >> (16 * j))));
    }
  }
  template <Code C>
  static __device__ std::uint32_t pack(const float* in) {
    std::uint16_t pair[2];
    for (int i = 0; i < 2; ++i) {
      if constexpr (std::same_as<C, fp8_e4m3>)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair[i]) : "f"(in[2 * i + 1]), "f"(in[2 * i]));
      else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair[i]) : "f"(in[2 * i + 1]), "f"(in[2 * i]));
    }
    return pair[0] | std::uint32_t{pair[1]} << 16;
  }
};

}  // namespace mori_ep::exec::gpu

#endif
