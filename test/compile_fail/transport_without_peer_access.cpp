// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: this schedule loads from and stores to peers' memory, which the transport cannot. Use transport::Xgmi.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

struct SendOnly {  // a transport, but a kernel cannot reach a peer's memory through it
  static constexpr const char* kName = "send_only";
  struct Ref {};
};
static_assert(transport::TransportPolicy<SendOnly>);

#ifdef GOOD
using Transport = transport::Xgmi;
#else
using Transport = SendOnly;
#endif
template class mori_ep::EpDispatchCombine<Transport, schedule::IntraNode, quant::None<bf16>, exec::Host>;
