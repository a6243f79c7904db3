// SPDX-License-Identifier: MIT
#include "gpu/schedules.hpp"
#include "gpu/session.hpp"
#include "mori_ep/fabric/device_loopback.hpp"

namespace ep_bench {

Outcome run_gpu_v1(const Problem& problem, const Progress& progress) {
  using Transport = mori_ep::transport::Hybrid<mori_ep::fabric::DeviceLoopback<gpu::Exec>>;
  return gpu::run<mori_ep::EpDispatchCombine<Transport, mori_ep::schedule::InterNodeV1,
                                             mori_ep::quant::None<mori_ep::bf16>, gpu::Exec>>(problem, progress);
}

}  // namespace ep_bench
