// SPDX-License-Identifier: MIT
//! @file Macros that let one function run, and run well, on every machine.
#pragma once

#if defined(__CUDACC__) && !defined(__HIP__) && !defined(__CUDACC_RELAXED_CONSTEXPR__)
#error "mori_ep: compile with --expt-relaxed-constexpr, or link mori_ep::cuda in CMake."
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "mori_ep: its kernels need sm_80. Compile with -arch=sm_80 or later, in CMake CMAKE_CUDA_ARCHITECTURES=80 or later."
#endif

#if defined(__CUDACC__) || defined(__HIP__)
#define MORI_EP_HD __host__ __device__
#else
#define MORI_EP_HD
#endif

// Calls that few launches make: kept out of the way of the instructions that all make. On AMD a call costs scratch memory.
#if defined(__CUDACC__) && !defined(__HIP__)
#define MORI_EP_COLD __noinline__
#elif defined(__HIP__)
#define MORI_EP_COLD
#else
#define MORI_EP_COLD [[gnu::cold]]
#endif

// A call where NVIDIA would copy a long body to many places, since a GPU reads instructions slowly the first time, or
// would lack the registers. On AMD a call costs scratch memory, and registers are plenty.
#if defined(__CUDACC__) && !defined(__HIP__)
#define MORI_EP_CALL __noinline__
#elif defined(__HIP__)
#define MORI_EP_CALL __forceinline__
#else
#define MORI_EP_CALL
#endif

// A body that AMD's compiler might else make a call of, which costs scratch memory. Other machines judge for themselves.
#if defined(__HIP__)
#define MORI_EP_BODY __attribute__((always_inline))
#else
#define MORI_EP_BODY
#endif

// Loops of few rounds, for the same reason: copies of a loop's body cost more than branches.
#if defined(__CUDACC__)
#define MORI_EP_ROLLED _Pragma("unroll 1")
#elif defined(__clang__)
#define MORI_EP_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define MORI_EP_ROLLED
#endif

// g++ leaves short loops rolled at -O2.
#if defined(__CUDACC__)
#define MORI_EP_UNROLL _Pragma("unroll")
#elif defined(__clang__)
#define MORI_EP_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MORI_EP_UNROLL _Pragma("GCC unroll 8")
#endif
