// SPDX-License-Identifier: MIT
//! @file Schedules on GPUs that are compiled by themselves.
#pragma once

#include "run.hpp"

namespace ep_bench {

//! @brief IntraNode with rows that are codes on the wire; as run_gpu().
[[nodiscard]] Outcome run_gpu_coded(const Problem& problem, const Progress& progress);
//! @brief InterNodeV1 with bf16, over fabric::DeviceLoopback; as run_gpu().
[[nodiscard]] Outcome run_gpu_v1(const Problem& problem, const Progress& progress);

}  // namespace ep_bench
