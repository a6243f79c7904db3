// SPDX-License-Identifier: MIT
// Operators for this compiler's GPU, with all their kernels and all their host code.
#pragma once

#include <cstdint>

#include "mori_ep/mori_ep.hpp"

#define MORI_EP_TEST_OPERATOR(Element, Reduce, Index)                                               \
  template class mori_ep::EpDispatchCombine<mori_ep::transport::Xgmi, mori_ep::schedule::IntraNode, \
                                            mori_ep::quant::None<Element>, mori_ep::exec::Default,  \
                                            mori_ep::reduce::Reduce, Index>
