// SPDX-License-Identifier: MIT
//! @file Policies that code rows on the way, rows that are codes already, and any two of them together.
#pragma once

#include "mori_ep/quant/none.hpp"
#include "mori_ep/quant/policy.hpp"

namespace mori_ep::quant {

//! @brief Combine's rows as codes, each element by itself: what is larger than the largest code saturates, what is small
//!        loses bits. Dispatch carries T. For rows whose magnitudes the caller knows; else use Fp8Blockwise.
template <Element T = bf16, Code C = fp8_e4m3>
struct Fp8DirectCast : Forms<T, CodedRow<T, C, 0>> {};

//! @brief Combine's rows as fp8 with a scale for each Block elements, which is made of the block's largest magnitude.
//!        Dispatch carries T. How far a sum can be off: CodedRow::error_bound.
//! Source    MORI-EP's fp8_blockwise, whose scales leave blocks below the format's largest number as they are; DeepSeek-V3.
template <int Block = 128, Element T = bf16, Code C = fp8_e4m3, BlockScale S = float>
struct Fp8Blockwise : Forms<T, CodedRow<T, C, Block, S>> {};

//! @brief The same as fp4, at half the bytes.
template <int Block = 32, Element T = bf16, BlockScale S = float>
struct Fp4Blockwise : Forms<T, CodedRow<T, fp4x2_e2m1, Block, S>> {};

//! @brief Rows that are codes already; their scales travel beside them as scale_dim times scale_type_size bytes of the
//!        caller's. For dispatch: within Pair.
template <class C>
struct Payload {
  static_assert(Code<C>,
                "quant::Payload<C>: C must be mori_ep::fp8_e4m3, fp8_e4m3_fnuz, fp8_e5m2 or fp4x2_e2m1. Rows of "
                "elements need no Payload: use quant::None.");
  using Codes = C;
};

namespace detail {

template <class P>
struct WireOf {
  static_assert(QuantPolicy<P>,
                "quant::Pair<D, C>: D, what dispatch carries, must be a wire format or a payload. Use "
                "quant::None<mori_ep::bf16>, quant::Fp8Blockwise<> or quant::Payload<mori_ep::fp8_e4m3>.");
  using type = typename P::Combine;
};
template <class C>
struct WireOf<Payload<C>> {
  using type = typename Payload<C>::Codes;
};
template <class P>
struct SummedAs {
  static_assert(QuantPolicy<P>,
                "quant::Pair<D, C>: C, what combine sums, must be a wire format. Use "
                "quant::None<mori_ep::bf16> or quant::Fp8Blockwise<>.");
  using type = typename P::Combine;
};

}  // namespace detail

//! @brief Dispatch as D has it on the wire, combine as C has it: Pair<Fp8Blockwise<128>, None<bf16>> codes bf16 rows on
//!        their way to the experts, which receive fp8 and fp32 scales, and combines in bf16; Pair<Payload<fp8_e4m3>,
//!        None<bf16>> carries what is fp8 already.
template <class D, class C>
struct Pair : Forms<typename detail::WireOf<D>::type, typename detail::SummedAs<C>::type> {};

static_assert(CodesDispatch<Pair<Fp8Blockwise<128>, None<bf16>>> && !CodesDispatch<Fp8Blockwise<128>>);
static_assert(!HasPlainCombine<Fp8Blockwise<128>> && HasPlainCombine<Pair<Payload<fp4x2_e2m1>, None<bf16>>>);

}  // namespace mori_ep::quant
