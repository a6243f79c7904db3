// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: the first parameter must be a transport. Use transport::Xgmi.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Transport = transport::Xgmi;
#else
using Transport = schedule::IntraNode;
#endif
template class mori_ep::EpDispatchCombine<Transport, schedule::IntraNode, quant::None<bf16>, exec::Host>;
