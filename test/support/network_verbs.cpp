// SPDX-License-Identifier: MIT
#include "mori_ep/fabric/verbs.hpp"
#include "support/harness.hpp"

namespace mori_ep::test {

std::string play_over_verbs(const Plan& plan) {
  return play_as<
      EpDispatchCombine<transport::Hybrid<fabric::Verbs>, schedule::InterNode, quant::None<bf16>, exec::Host>>(plan,
                                                                                                               nullptr);
}

}  // namespace mori_ep::test
