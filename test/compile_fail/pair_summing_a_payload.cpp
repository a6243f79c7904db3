// SPDX-License-Identifier: MIT
// expect-error: quant::Pair<D, C>: C, what combine sums, must be a wire format. Use quant::None<mori_ep::bf16> or quant::Fp8Blockwise<>.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Quant = quant::Pair<quant::Fp8Blockwise<128>, quant::None<bf16>>;
#else
using Quant = quant::Pair<quant::None<bf16>, quant::Payload<fp8_e4m3>>;
#endif
template struct quant::Forms<Quant::Dispatch, Quant::Combine>;
