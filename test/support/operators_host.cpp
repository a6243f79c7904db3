// SPDX-License-Identifier: MIT
#include "support/operators.hpp"

namespace mori_ep::test {
std::string play_on_host(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  return play_on<exec::Host>(plan, hashes);
}
}  // namespace mori_ep::test
