// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: this schedule crosses nodes by a network, and the transport has none. Use transport::Hybrid or transport::Rdma, or schedule::IntraNode.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Transport = transport::Rdma<fabric::Loopback<>>;
#else
using Transport = transport::Xgmi;
#endif
template class mori_ep::EpDispatchCombine<Transport, schedule::InterNode, quant::None<bf16>, exec::Host>;
