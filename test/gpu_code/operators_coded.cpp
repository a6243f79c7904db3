// SPDX-License-Identifier: MIT
// Rows that are coded both ways, in codes that the target converts by instructions.
#include "operators.hpp"

namespace {

using namespace mori_ep;
#if defined(MORI_EP_TEST_OCP_CODES)
using BothWays = quant::Pair<quant::Fp8Blockwise<128>, quant::Fp4Blockwise<32>>;
#else
using BothWays =
    quant::Pair<quant::Fp8Blockwise<128, bf16, fp8_e4m3_fnuz>, quant::Fp8Blockwise<128, bf16, fp8_e4m3_fnuz>>;
#endif
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, BothWays, exec::Default>;

}  // namespace

Status round_of(Ep& ep, const Ep::DispatchInputs& inputs, const Ep::CombineInputs& outputs, Ep::StreamRef stream);
Status round_of(Ep& ep, const Ep::DispatchInputs& inputs, const Ep::CombineInputs& outputs, Ep::StreamRef stream) {
  auto got = ep.dispatch(inputs, stream);
  return got.ok() ? ep.combine(std::move(got->ticket), outputs, stream) : got.status();
}
