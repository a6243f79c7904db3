// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: this schedule loads from and stores to peers' memory, which the transport cannot. Use transport::Xgmi, or schedule::InterNode.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Transport = transport::Xgmi;
#else
using Transport = transport::Hybrid<fabric::Loopback<>>;
#endif
template class mori_ep::EpDispatchCombine<Transport, schedule::IntraNode, quant::None<bf16>, exec::Host>;
