// SPDX-License-Identifier: MIT
// expect-error: CodedRow: fp4 without a scale has eight magnitudes and no NaN. Give it blocks, of 32.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
constexpr int kBlock = 32;
#else
constexpr int kBlock = 0;
#endif
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode,
                                          quant::Pair<quant::Fp4Blockwise<kBlock>, quant::None<bf16>>, exec::Host>;
