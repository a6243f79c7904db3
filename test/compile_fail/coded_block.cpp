// SPDX-License-Identifier: MIT
// expect-error: CodedRow: a block is a power of two, of 16 to 512 elements, 32 to 512 as fp4. Use 128.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
constexpr int kBlock = 64;
#else
constexpr int kBlock = 100;
#endif
template class mori_ep::EpDispatchCombine<transport::Xgmi, schedule::IntraNode,
                                          quant::Pair<quant::Fp8Blockwise<kBlock>, quant::None<bf16>>, exec::Host>;
