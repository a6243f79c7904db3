// SPDX-License-Identifier: MIT
//! @file The one macro that lets a function run on every machine.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#define MORI_EP_HD __host__ __device__
#else
#define MORI_EP_HD
#endif
