// SPDX-License-Identifier: MIT
// expect-error: quant::Pair<D, C>: D, what dispatch carries, must be a wire format or a payload. Use quant::None<mori_ep::bf16>, quant::Fp8Blockwise<> or quant::Payload<mori_ep::fp8_e4m3>.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Quant = quant::Pair<quant::Payload<fp8_e4m3>, quant::None<bf16>>;
#else
using Quant = quant::Pair<fp8_e4m3, quant::None<bf16>>;
#endif
template struct quant::Forms<Quant::Dispatch, Quant::Combine>;
