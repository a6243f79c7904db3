// SPDX-License-Identifier: MIT
// Compiled as HIP or CUDA. Combine depends on the reduction, the standard-MoE kernels on the index: two operators have
// all of both.
#include "operators.hpp"

MORI_EP_TEST_OPERATOR(float, Sum, std::int32_t);
MORI_EP_TEST_OPERATOR(float, WeightedSum, std::int64_t);
