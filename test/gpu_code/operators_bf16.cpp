// SPDX-License-Identifier: MIT
// Compiled as HIP or CUDA. The dispatch kernels do not depend on the element: all of them are here.
#include "operators.hpp"

MORI_EP_TEST_OPERATOR(mori_ep::bf16, Sum, std::int32_t);
MORI_EP_TEST_OPERATOR(mori_ep::bf16, Sum, std::int64_t);
MORI_EP_TEST_OPERATOR(mori_ep::bf16, WeightedSum, std::int32_t);
MORI_EP_TEST_OPERATOR(mori_ep::bf16, WeightedSum, std::int64_t);
