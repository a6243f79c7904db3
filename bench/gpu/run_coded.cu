// SPDX-License-Identifier: MIT
#include "gpu/schedules.hpp"
#include "gpu/session.hpp"
#include "quantisation.hpp"

namespace ep_bench {

Outcome run_gpu_coded(const Problem& problem, const Progress& progress) {
  return with_quant(problem.config(), [&]<class Quant>(Quant*) {
    return gpu::run<
        mori_ep::EpDispatchCombine<mori_ep::transport::Xgmi, mori_ep::schedule::IntraNode, Quant, gpu::Exec>>(problem,
                                                                                                              progress);
  });
}

}  // namespace ep_bench
