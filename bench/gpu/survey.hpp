// SPDX-License-Identifier: MIT
//! @file Which GPUs there are and which reach each other's memory, free of the runtime's headers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ep_bench {

struct GpuSurvey {
  struct Device {
    std::string name;
    std::int64_t memory_bytes = 0;
    std::vector<bool> reaches;  //!< by device: whether its kernels can access that one's memory; itself: yes
  };
  std::string built_for;  //!< "cuda"; empty: this program was built for the host alone
  std::string trouble;    //!< what the runtime said instead of naming a device
  std::vector<Device> devices;
};

//! @brief Asks the runtime; starts nothing on any device.
[[nodiscard]] GpuSurvey survey_gpus();

}  // namespace ep_bench
