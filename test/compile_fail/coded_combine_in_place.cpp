// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine::get_registered_combine_input_buffer: this wire format codes the rows of combine, so none can be written in place. Give combine an input, or choose quant::None for combine.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Wire = quant::Pair<quant::Fp8Blockwise<128>, quant::None<bf16>>;
#else
using Wire = quant::Fp8Blockwise<128>;
#endif
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, Wire, exec::Host>;
auto buffer(const Ep& ep, const Ep::Ticket& ticket) { return ep.get_registered_combine_input_buffer(ticket); }
