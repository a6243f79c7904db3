// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: the fourth parameter must be a machine. Use exec::Host.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Exec = exec::Host;
#else
using Exec = exec::Host::Context;
#endif
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, Exec>;
