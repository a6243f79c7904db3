// SPDX-License-Identifier: MIT
#include "support/harness.hpp"

namespace mori_ep::test {
template std::string play_as<RelayOp<bf16>>(const Plan&, std::vector<std::uint64_t>*);
template std::string play_as<RelayOp<bf16, reduce::Sum, std::int64_t>>(const Plan&, std::vector<std::uint64_t>*);
template std::string play_as<RelayOp<bf16, reduce::WeightedSum>>(const Plan&, std::vector<std::uint64_t>*);
}  // namespace mori_ep::test
