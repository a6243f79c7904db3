// SPDX-License-Identifier: MIT
// The operator for NVIDIA GPUs, all of it: compiled by the gate when nvcc is there, never run by it.
#include "mori_ep/mori_ep.hpp"

using namespace mori_ep;
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Cuda>;
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<fp16>, exec::Cuda,
                                          reduce::WeightedSum, std::int64_t>;
