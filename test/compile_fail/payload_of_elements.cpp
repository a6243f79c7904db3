// SPDX-License-Identifier: MIT
// expect-error: quant::Payload<C>: C must be mori_ep::fp8_e4m3, fp8_e4m3_fnuz, fp8_e5m2 or fp4x2_e2m1. Rows of elements need no Payload: use quant::None.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Quant = quant::Pair<quant::Payload<fp8_e4m3>, quant::None<bf16>>;
#else
using Quant = quant::Pair<quant::Payload<bf16>, quant::None<bf16>>;
#endif
template struct quant::Forms<Quant::Dispatch, Quant::Combine>;
