// SPDX-License-Identifier: MIT
//! @file The machines this translation unit is compiled for, and the one an operator runs on when its type does not
//! say.
#pragma once

#include "mori_ep/exec/cuda.hpp"
#include "mori_ep/exec/hip.hpp"
#include "mori_ep/exec/host/host.hpp"

namespace mori_ep::exec {

#if defined(__HIP__)
using Default = Hip;
#elif defined(__CUDACC__)
using Default = Cuda;
#else
using Default = Host;
#endif

}  // namespace mori_ep::exec
