// SPDX-License-Identifier: MIT
//! @file Operators whose rows are coded on the way, and a round of dispatch and combine of all ranks that is compared with
//!       what the formats' definitions give (small_float.hpp, oracle.hpp: plain loops, no library code).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/expect.hpp"
#include "support/machine.hpp"
#include "support/oracle.hpp"
#include "support/random.hpp"
#include "support/small_float.hpp"

namespace mori_ep::test {

//! @brief Of a round. Rows of all magnitudes; `specials`: also zeros, denormals, infinities and NaN.
struct CodedRound {
  int world = 2, gpu_per_node = 0, hidden = 128, tokens = 5, experts_per_rank = 2, topk = 3;
  int blocks = 0, warps = 0;  // 0: the machine's default
  bool specials = false;
  std::uint64_t seed = 1;
};

template <class Quant, class Reduce = reduce::Sum, class Index = std::int32_t>
using CodedOp = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, Quant, Machine, Reduce, Index>;
template <class Schedule, class Quant, template <class> class Transport = transport::Hybrid, class Reduce = reduce::Sum>
using CodedNetworkOp =
    EpDispatchCombine<Transport<fabric::Loopback<fabric::Order::none>>, Schedule, Quant, Machine, Reduce>;

using CastOp = CodedOp<quant::Fp8DirectCast<>>;
using BothWaysOp = CodedOp<quant::Pair<quant::Fp8Blockwise<128>, quant::Fp4Blockwise<32>>, reduce::Sum, std::int64_t>;
using CarriedOp = CodedOp<quant::Pair<quant::Payload<fp4x2_e2m1>, quant::Fp8Blockwise<32, fp16, fp8_e5m2, e8m0>>,
                          reduce::WeightedSum>;
using CodedDispatchOp = CodedOp<quant::Pair<quant::Fp8Blockwise<128, float>, quant::None<float>>>;
using CarriedDispatchOp = CodedOp<quant::Pair<quant::Payload<fp8_e4m3>, quant::None<bf16>>>;

using CodedInterNodeOp =
    CodedNetworkOp<schedule::InterNode, quant::Pair<quant::Fp8Blockwise<128>, quant::Fp8Blockwise<128>>>;
using CodedRelayOp =
    CodedNetworkOp<schedule::InterNodeV1, quant::Pair<quant::Fp8Blockwise<128>, quant::Fp8Blockwise<128>>,
                   transport::Hybrid, reduce::WeightedSum>;
using CodedExactRelayOp = CodedNetworkOp<
    schedule::InterNodeV1With<partial::Exact>,
    quant::Pair<quant::Fp8Blockwise<32, bf16, fp8_e4m3, e8m0>, quant::Fp8Blockwise<64, bf16, fp8_e4m3_fnuz>>>;
using CarriedRelayOp = CodedNetworkOp<schedule::InterNodeV1, quant::Pair<quant::Payload<fp8_e4m3>, quant::None<bf16>>>;
using CodedRdmaOp =
    CodedNetworkOp<schedule::InterNode, quant::Pair<quant::Fp8Blockwise<128>, quant::None<bf16>>, transport::Rdma>;
using CodedRdmaRelayOp =
    CodedNetworkOp<schedule::InterNodeV1, quant::Pair<quant::Payload<fp4x2_e2m1>, quant::Fp8Blockwise<128>>,
                   transport::Rdma>;

//! @brief Round `number` of those that `seed` gives.
inline CodedRound random_round(bool networked, std::uint64_t seed, std::uint64_t number) {
  Rng rng(mix(seed, number, 5));
  CodedRound round{.world = rng.in(1, 6),
                   .hidden = 32 * (rng.one_in(4) ? rng.in(1, 40) : rng.in(1, 9)),
                   .tokens = rng.in(1, 40),
                   .experts_per_rank = rng.in(1, 3),
                   .topk = rng.one_in(9) ? 32 : rng.in(1, 9),
                   .blocks = rng.one_in(2) ? rng.in(1, 3) : 0,
                   .warps = rng.one_in(2) ? rng.in(1, 4) : 0,
                   .specials = rng.one_in(3),
                   .seed = mix(seed, number)};
  if (networked) {
    round.gpu_per_node = rng.in(1, 3);
    round.world = rng.in(1, 8);
  }
  if (round.warps > 1 && rng.one_in(2)) round.tokens = rng.in(1, 3);  // warps share rows
  return round;
}

//! @brief Plays it and says what is wrong, "" when nothing is.
template <class Operator>
std::string play_coded(const CodedRound& round);
extern template std::string play_coded<CastOp>(const CodedRound&);
extern template std::string play_coded<BothWaysOp>(const CodedRound&);
extern template std::string play_coded<CarriedOp>(const CodedRound&);
extern template std::string play_coded<CodedDispatchOp>(const CodedRound&);
extern template std::string play_coded<CarriedDispatchOp>(const CodedRound&);
extern template std::string play_coded<CodedInterNodeOp>(const CodedRound&);
extern template std::string play_coded<CodedRelayOp>(const CodedRound&);
extern template std::string play_coded<CodedExactRelayOp>(const CodedRound&);
extern template std::string play_coded<CarriedRelayOp>(const CodedRound&);
extern template std::string play_coded<CodedRdmaOp>(const CodedRound&);
extern template std::string play_coded<CodedRdmaRelayOp>(const CodedRound&);

//! @brief Over RDMA, InterNodeV1: bf16 that become fp8 on the way there, and on the way back.
std::string play_coded_over_verbs(const CodedRound& round);

}  // namespace mori_ep::test
