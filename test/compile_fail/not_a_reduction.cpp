// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine: the fifth parameter must be a reduction. Use reduce::Sum or reduce::WeightedSum.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Reduce = reduce::WeightedSum;
#else
using Reduce = bf16;
#endif
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Host, Reduce>;
