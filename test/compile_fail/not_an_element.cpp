// SPDX-License-Identifier: MIT
// expect-error: quant::None<T>: T must be mori_ep::bf16, mori_ep::fp16 or float. Convert the rows or, where they are codes already, use quant::Pair<quant::Payload<T>, quant::None<mori_ep::bf16>>.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using T = float;
#else
using T = double;
#endif
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<T>, exec::Host>;
