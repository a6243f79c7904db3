// SPDX-License-Identifier: MIT
#include "support/operators.hpp"

namespace mori_ep::test {
std::string play(const Plan& plan, std::vector<std::uint64_t>* hashes) { return play_on<Machine>(plan, hashes); }
}  // namespace mori_ep::test
