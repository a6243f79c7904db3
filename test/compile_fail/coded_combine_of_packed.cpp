// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine::convert_combine_input: this wire format codes the rows of combine, and the standard-MoE layout is summed into them as they are. Choose quant::None for combine.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Wire = quant::Pair<quant::Fp8Blockwise<128>, quant::None<bf16>>;
#else
using Wire = quant::Fp8Blockwise<128>;
#endif
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, Wire, exec::Host>;
Status convert(Ep& ep, const Ep::Ticket& ticket, const Ep::StandardMoeResults& packed, Ep::StreamRef stream) {
  return ep.convert_combine_input(ticket, packed, stream);
}
