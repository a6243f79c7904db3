// SPDX-License-Identifier: MIT
#include "mori_ep/fabric/verbs.hpp"
#include "support/harness.hpp"

namespace mori_ep::test {

namespace {
template <class Schedule>
using VerbsOp = EpDispatchCombine<transport::Hybrid<fabric::Verbs>, Schedule, quant::None<bf16>, exec::Host>;
}  // namespace

std::string play_over_verbs(const Plan& plan) { return play_as<VerbsOp<schedule::InterNode>>(plan, nullptr); }
std::string play_by_relays_over_verbs(const Plan& plan) {
  return play_as<VerbsOp<schedule::InterNodeV1With<partial::Exact>>>(plan, nullptr);
}

}  // namespace mori_ep::test
