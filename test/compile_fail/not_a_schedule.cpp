// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: the second parameter must be a schedule. Use schedule::IntraNode.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Schedule = schedule::IntraNode;
#else
using Schedule = transport::Xgmi;
#endif
template class mori_ep::EpDispatchCombine<transport::Xgmi, Schedule, quant::None<bf16>, exec::Host>;
