// SPDX-License-Identifier: MIT
//! @file Macros that let one function run, and run well, on every machine.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#define MORI_EP_HD __host__ __device__
#else
#define MORI_EP_HD
#endif

// g++ leaves short loops rolled at -O2.
#if defined(__CUDACC__)
#define MORI_EP_UNROLL _Pragma("unroll")
#elif defined(__clang__)
#define MORI_EP_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MORI_EP_UNROLL _Pragma("GCC unroll 8")
#endif
