// SPDX-License-Identifier: MIT
//! @file What AMD GPUs do their own way.
#pragma once

#include "mori_ep/exec/conversions.hpp"
#include "mori_ep/exec/gpu/vector.hpp"
#include "mori_ep/numeric/coded_row.hpp"

#if defined(__HIP__)

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace mori_ep::exec::gpu {

//! @brief AMD: waves of 64 lanes (gfx9), or of 32 (gfx10 and later). A wave's width is decided here: for kernels by
//!        `lanes`; the host, which is compiled before the device is known, asks device_lanes().
//!
//! Kernels have more operands and pointers than a wave has scalar registers (about 100), and vector registers to spare.
//! So operands lie in the block's memory, addresses of scratch are kept in vector registers, and what depends on the
//! lane or on the number of warps is computed anew each time; empty asm statements say so.
struct Target {
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
  static constexpr int lanes = 32;
#else
  static constexpr int lanes = 64;
#endif
  using Words = std::uint32_t __attribute__((ext_vector_type(4), may_alias));
  template <class T>
  using Global = T __attribute__((address_space(1)))*;

  //! @brief What __launch_bounds__ takes second: waves per SIMD, of which a compute unit has four.
  static constexpr int least_resident(int threads, int blocks_per_unit) {
    return threads * blocks_per_unit / lanes / 4;
  }
  //! @brief The launch's operand, copied to where it is read again at each use; every wave copies all of it, so none
  //!        waits for another.
  template <class K>
  static __device__ __forceinline__ const K& operand(const K& kernel) {
    static_assert(std::is_trivially_copyable_v<K> && sizeof(K) % 4 == 0);
    __shared__ __attribute__((aligned(16))) Word copy[sizeof(K) / 4];
    for (std::size_t i = static_cast<std::size_t>(lane()); i < sizeof(K) / 4; i += lanes)
      copy[i] = reinterpret_cast<const Word*>(&kernel)[i];
    warp_sync();
    return *reinterpret_cast<const K*>(copy);
  }
  //! @brief A place in the block's scratch.
  template <class T>
  static __device__ T* scratch(std::byte* p) {
    auto* at = (__attribute__((address_space(3))) T*)p;
    asm("" : "+v"(at));
    return (T*)at;
  }
  //! @brief A pointer that says that it is not into scratch: global instructions instead of flat ones.
  template <class T>
  static __device__ Global<T> global(T* p) {
    return (Global<T>)p;
  }
  template <class T>
  static __device__ T load(const T* p) {
    if constexpr (std::is_scalar_v<T>) {
      return *global(p);
    } else {
      Parts<T> parts;
      for (std::size_t i = 0; i < sizeof(T) / 4; ++i) parts.word[i] = global(reinterpret_cast<const Word*>(p))[i];
      return __builtin_bit_cast(T, parts);
    }
  }
  template <class T>
  static __device__ void store(T* p, const T& value) {
    if constexpr (std::is_scalar_v<T>) {
      *global(p) = value;
    } else {
      auto const parts = __builtin_bit_cast(Parts<T>, value);
      for (std::size_t i = 0; i < sizeof(T) / 4; ++i) global(reinterpret_cast<Word*>(p))[i] = parts.word[i];
    }
  }

  //! A row is read once and written once: both bypass what they can of the caches (dwordx4 nt).
  static __device__ Vec16 load_row(const void* p) {
    return __builtin_bit_cast(Vec16, __builtin_nontemporal_load(global(static_cast<const Words*>(p))));
  }
  static __device__ void prefetch(const void* p) { __builtin_prefetch(p); }
  static __device__ void store_row(void* p, const Vec16& v) {
    __builtin_nontemporal_store(__builtin_bit_cast(Words, v), global(static_cast<Words*>(p)));
  }
  //! A wave's release covers its own stores only, and __syncthreads waits for none: so every wave writes back and waits
  //! before the block meets. The wait is written out because LLVM up to 22 drops it when nothing else is pending.
  static __device__ void flush_stores() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
    wait_for_stores();
  }
  template <class T>
  static __device__ void store_release_system(T* p, T value) {
    flush_stores();
    __hip_atomic_store(global(p), value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  static __device__ void store_relaxed_system(std::uint64_t* p, std::uint64_t value) {
    __hip_atomic_store(global(p), value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  //! The end of a launch writes back what this device has to see, which need not be all that a peer has to see.
  static __device__ void store_after_launch(std::uint64_t* p, std::uint64_t value) { store_release_system(p, value); }
  template <class T>
  static __device__ T load_relaxed_system(const T* p) {
    return __hip_atomic_load(global(p), __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  template <class T>
  static __device__ T load_acquire_system(const T* p) {
    return __hip_atomic_load(global(p), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
  }
  //! The release half is flush_stores(): an operation that releases by itself would write back again, without the wait.
  static __device__ std::uint32_t add_acq_rel_device(std::uint32_t* p, std::uint32_t value) {
    flush_stores();
    std::uint32_t const before = __hip_atomic_fetch_add(global(p), value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    return before;
  }
  static __device__ std::uint32_t exchange_acq_rel_system(std::uint32_t* p, std::uint32_t value) {
    flush_stores();
    std::uint32_t const before = __hip_atomic_exchange(global(p), value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");
    return before;
  }
  //! A counter of 100 MHz on every target so far.
  static __device__ std::uint64_t clock_ns() {
#if defined(__GFX11__) || defined(__GFX12__)
    return __builtin_readsteadycounter() * 10;
#else
    return __builtin_amdgcn_s_memrealtime() * 10;
#endif
  }
  static __device__ void nap() { __builtin_amdgcn_s_sleep(1); }
  static __device__ int lane() {
    unsigned lane = __builtin_amdgcn_mbcnt_lo(~0u, 0u);
    if constexpr (lanes == 64) lane = __builtin_amdgcn_mbcnt_hi(~0u, lane);
    asm volatile("" : "+v"(lane));
    return static_cast<int>(lane);
  }
  //! The same on all lanes, which the compiler does not see by itself: what depends on it alone is scalar.
  static __device__ int warp() { return __builtin_amdgcn_readfirstlane(static_cast<int>(threadIdx.x) / lanes); }
  static __device__ int warps() {
    int warps = static_cast<int>(blockDim.x) / lanes;
    asm volatile("" : "+v"(warps));
    return warps;
  }
  //! A wave runs in step, but the compiler may move one lane's memory access past another's unless fences forbid it;
  //! they cost no instruction.
  static __device__ void warp_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
  }
  static __device__ std::uint64_t ballot(bool vote) {
    if constexpr (lanes == 32)
      return __builtin_amdgcn_ballot_w32(vote);
    else
      return __builtin_amdgcn_ballot_w64(vote);
  }
  static __device__ std::uint32_t from_lane_0(std::uint32_t value) { return __builtin_amdgcn_readfirstlane(value); }
  static __device__ std::uint32_t from_lane_xor(std::uint32_t value, int mask) {
    return static_cast<std::uint32_t>(
        __builtin_amdgcn_ds_bpermute((lane() ^ mask) * 4, static_cast<std::int32_t>(value)));
  }
  //! fp32 products that stay apart from the sum, so that all machines agree on the bits.
  static __device__ float product(float a, float b) {
    float p = a * b;
    asm("" : "+v"(p));
    return p;
  }
  static __device__ float reciprocal(float a) { return 1.0f / a; }

  static __device__ Vec16 load_row_piece(const void* p) { return load_row(p); }
  static __device__ Vec8 load_row_half(const void* p) {
    return __builtin_bit_cast(Vec8, static_cast<Pair>(*global(static_cast<const Pair*>(p))));
  }
  static __device__ void store_row(void* p, const Vec8& v) {
    *global(static_cast<Pair*>(p)) = __builtin_bit_cast(Pair, v);
  }

  template <Code C>
  static constexpr bool converts() {
#if defined(__gfx942__)
    return converts_by_instruction<C>(ConversionTarget::gfx942);
#elif defined(__gfx950__)
    return converts_by_instruction<C>(ConversionTarget::gfx950);
#elif defined(__GFX12__)
    return converts_by_instruction<C>(ConversionTarget::gfx12);
#else
    return converts_by_instruction<C>(ConversionTarget::gfx90a);
#endif
  }
  template <Code C>
  static __device__ void unpack([[maybe_unused]] std::uint32_t word, [[maybe_unused]] float* out) {
#if defined(__gfx950__)
    if constexpr (std::same_as<C, fp4x2_e2m1>) {
      put(out, __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(word, 1.0f, 0));
      put(out + 2, __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(word, 1.0f, 1));
      put(out + 4, __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(word, 1.0f, 2));
      put(out + 6, __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(word, 1.0f, 3));
      return;
    }
#endif
#if defined(__gfx942__) || defined(__gfx950__) || defined(__GFX12__)
    auto const codes = static_cast<std::int32_t>(word);
    if constexpr (std::same_as<C, fp8_e5m2>) {
      put(out, __builtin_amdgcn_cvt_pk_f32_bf8(codes, false));
      put(out + 2, __builtin_amdgcn_cvt_pk_f32_bf8(codes, true));
    } else {
      put(out, __builtin_amdgcn_cvt_pk_f32_fp8(codes, false));
      put(out + 2, __builtin_amdgcn_cvt_pk_f32_fp8(codes, true));
    }
#endif
  }
  //! The instructions saturate only where a mode bit says so, hence the clamp.
  template <Code C>
  static __device__ std::uint32_t pack([[maybe_unused]] const float* in) {
    [[maybe_unused]] auto const clamped = [&](int i) { return __builtin_amdgcn_fmed3f(in[i], C::kMax, -C::kMax); };
#if defined(__gfx950__)
    if constexpr (std::same_as<C, fp4x2_e2m1>) {
      std::uint32_t word = 0;
      word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, clamped(0), clamped(1), 1.0f, 0);
      word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, clamped(2), clamped(3), 1.0f, 1);
      word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, clamped(4), clamped(5), 1.0f, 2);
      return __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, clamped(6), clamped(7), 1.0f, 3);
    }
#endif
#if defined(__gfx942__) || defined(__gfx950__) || defined(__GFX12__)
    if constexpr (std::same_as<C, fp8_e5m2>) {
      std::int32_t const low = __builtin_amdgcn_cvt_pk_bf8_f32(clamped(0), clamped(1), 0, false);
      return static_cast<std::uint32_t>(__builtin_amdgcn_cvt_pk_bf8_f32(clamped(2), clamped(3), low, true));
    } else {
      std::int32_t const low = __builtin_amdgcn_cvt_pk_fp8_f32(clamped(0), clamped(1), 0, false);
      return static_cast<std::uint32_t>(__builtin_amdgcn_cvt_pk_fp8_f32(clamped(2), clamped(3), low, true));
    }
#else
    return 0;
#endif
  }

 private:
  using Word = std::uint32_t __attribute__((may_alias));
  using Pair = std::uint32_t __attribute__((ext_vector_type(2), may_alias));
  using Floats = float __attribute__((ext_vector_type(2)));
  static __device__ void put(float* out, Floats pair) { out[0] = pair.x, out[1] = pair.y; }
  //! A class cannot be copied from an address space; its words can.
  template <class T>
  struct Parts {
    static_assert(sizeof(T) % 4 == 0 && alignof(T) >= 4);
    std::uint32_t word[sizeof(T) / 4];
  };

  static __device__ void wait_for_stores() {
#if defined(__GFX12__)
    asm volatile("s_wait_storecnt 0x0" ::: "memory");
#elif defined(__GFX10__) || defined(__GFX11__)
    asm volatile("s_waitcnt_vscnt null, 0x0" ::: "memory");
#else
    asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
  }
};

}  // namespace mori_ep::exec::gpu

#endif
