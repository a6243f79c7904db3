// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: expert ids must be std::int32_t or std::int64_t.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Index = std::int64_t;
#else
using Index = short;
#endif
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Host, reduce::Sum, Index>;
