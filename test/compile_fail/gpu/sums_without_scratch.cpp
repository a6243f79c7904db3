// SPDX-License-Identifier: MIT
// expect-error: reduce_rows: give the kernel a member static constexpr bool kReducesRows = true.
#include "mori_ep/exec/exec.hpp"

struct Kernel {
  int operand;
#ifdef GOOD
  static constexpr bool kReducesRows = true;
#endif
  template <class Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    ctx.template reduce_rows<float, false>(nullptr, nullptr, 1, 0, nullptr, 4, 0, 1);
  }
};
template __global__ void mori_ep::exec::gpu::entry(MORI_EP_GRID_CONSTANT const Kernel);
