// SPDX-License-Identifier: MIT
#include "support/harness.hpp"

namespace mori_ep::test {
template std::string play_as<Op<float>>(const Plan&);
template std::string play_as<Op<float, reduce::Sum, std::int64_t>>(const Plan&);
template std::string play_as<Op<float, reduce::WeightedSum>>(const Plan&);
}  // namespace mori_ep::test
