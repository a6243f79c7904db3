// SPDX-License-Identifier: MIT
// Debian's HIP headers want the wave's width as a macro, which clang-22 does not give.
#ifndef MORI_EP_DEBIAN_HIP_RUNTIME_H
#define MORI_EP_DEBIAN_HIP_RUNTIME_H
#ifndef __AMDGCN_WAVEFRONT_SIZE
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
#define __AMDGCN_WAVEFRONT_SIZE 32
#else
#define __AMDGCN_WAVEFRONT_SIZE 64
#endif
#endif
#include_next <hip/hip_runtime.h>
#endif
