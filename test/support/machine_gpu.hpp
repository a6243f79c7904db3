// SPDX-License-Identifier: MIT
//! @file A kernel that two translation units know: support/machine_gpu.cpp is the other.
#pragma once

#include <cstdint>

#include "support/machine.hpp"

namespace mori_ep::test {

struct MarkKernel {
  std::uint32_t* word;
  std::uint32_t mark;
  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    if (ctx.block() == 0 && ctx.warp() == 0 && ctx.lane() == 0) ctx.store(word, mark);
  }
};

const void* mark_kernel_elsewhere();
Status launch_mark_elsewhere(const exec::LaunchGeometry& geometry, const MarkKernel& kernel, Machine::StreamRef stream);

}  // namespace mori_ep::test
