// SPDX-License-Identifier: MIT
#include "mori_ep/fabric/verbs.hpp"
#include "support/coded_play.hpp"
#include "support/compositions.hpp"
#include "support/harness.hpp"

namespace mori_ep::test {

namespace {
template <class Schedule, class Quant = quant::None<bf16>>
using VerbsOp = EpDispatchCombine<transport::Hybrid<fabric::Verbs>, Schedule, Quant, exec::Host>;
using CodedVerbsOp = VerbsOp<schedule::InterNodeV1, quant::Pair<quant::Fp8Blockwise<128>, quant::Fp8Blockwise<128>>>;
}  // namespace

std::vector<Composition> verbs_compositions() {
  return compositions<VerbsOp<schedule::InterNode>, VerbsOp<schedule::InterNodeV1With<partial::Exact>>, CodedVerbsOp>();
}
std::string play_coded_over_verbs(const CodedRound& round) { return play_coded<CodedVerbsOp>(round); }

std::string play_over_verbs(const Plan& plan) { return play_as<VerbsOp<schedule::InterNode>>(plan, nullptr); }
std::string play_by_relays_over_verbs(const Plan& plan) {
  return play_as<VerbsOp<schedule::InterNodeV1With<partial::Exact>>>(plan, nullptr);
}

}  // namespace mori_ep::test
