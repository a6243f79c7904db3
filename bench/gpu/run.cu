// SPDX-License-Identifier: MIT
#include "gpu/schedules.hpp"

#include <cstddef>
#include <string>

#include "element_types.hpp"
#include "gpu/gpu.hpp"
#include "gpu/session.hpp"

namespace ep_bench {

using namespace gpu;

void check_device_memory(const Problem& problem) {
  const Config& c = problem.config();
  std::size_t needed = 0;
  for (int device = 0; device < c.devices; ++device) {
    // The swept memory, code and the runtime's own come on top.
    needed = GpuCeilings::bytes_on_a_device(c.devices) + (std::size_t{1} << 29);
    for (int rank = 0; rank < c.world; ++rank)
      if (c.device_of(rank) == device)
        needed += footprint(c).bytes +
                  (2 * problem.tokens() + (c.external ? problem.received(rank).size() : 0)) * c.row_bytes();
    std::size_t available = 0, all = 0;
    set_device(device);
    require(MORI_EP_RT(MemGetInfo)(&available, &all), "asking for free memory");
    if (needed > available)
      throw UsageError("--tokens " + std::to_string(c.tokens) + " needs " + std::to_string(needed) +
                       " bytes on device " + std::to_string(device) + " and " + std::to_string(available) +
                       " are free: give fewer --tokens, a smaller --hidden, or more --devices.");
  }
  set_device(0);
}

Outcome run_gpu(const Problem& problem, const Progress& progress) {
  if (problem.config().schedule == "v1") return run_gpu_v1(problem, progress);
  if (problem.config().quant != "none") return run_gpu_coded(problem, progress);
  using mori_ep::transport::Xgmi, mori_ep::schedule::IntraNode, mori_ep::quant::None;
  return with_element_type(problem.config().dtype, [&]<class T>(T) {
    return gpu::run<mori_ep::EpDispatchCombine<Xgmi, IntraNode, None<T>, Exec>>(problem, progress);
  });
}

}  // namespace ep_bench
