// SPDX-License-Identifier: MIT
#include "gpu/gpu.hpp"
#include "gpu/survey.hpp"

namespace ep_bench {

void set_gpu_environment() {}

GpuSurvey survey_gpus() { return {}; }

Devices open_devices(int, int) {
  throw UsageError(
      "--exec cuda: this ep_bench was built for the host alone. Configure with -DMORI_EP_GPU=cuda (it needs nvcc) and "
      "build again.");
}

void check_device_memory(const Problem&) {}

GpuCeilings::GpuCeilings(int) {}
void GpuCeilings::measure() {}

Outcome run_gpu(const Problem&, const Progress&) { return {}; }

}  // namespace ep_bench
