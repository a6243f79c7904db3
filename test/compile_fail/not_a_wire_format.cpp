// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: the third parameter must be a wire format. Use quant::None<mori_ep::bf16> or, for rows that are codes already, quant::Pair<quant::Payload<mori_ep::fp8_e4m3>, quant::None<mori_ep::bf16>>.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Quant = quant::None<bf16>;
#else
using Quant = quant::Payload<fp8_e4m3>;
#endif
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode, Quant, exec::Host>;
