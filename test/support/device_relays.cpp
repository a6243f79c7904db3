// SPDX-License-Identifier: MIT
#include "support/harness.hpp"

namespace mori_ep::test {
template std::string play_as<DeviceRelayOp>(const Plan&, std::vector<std::uint64_t>*);
}  // namespace mori_ep::test
