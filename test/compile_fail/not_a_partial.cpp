// SPDX-License-Identifier: MIT
// expect-error: schedule::InterNodeV1With: the parameter must say what relays send back. Use partial::Wire or partial::Exact.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Partial = partial::Exact;
#else
using Partial = bf16;
#endif
template class mori_ep::EpDispatchCombine<transport::Hybrid<fabric::Loopback<>>, schedule::InterNodeV1With<Partial>,
                                          quant::None<bf16>, exec::Host>;
