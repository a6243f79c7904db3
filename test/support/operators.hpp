// SPDX-License-Identifier: MIT
//! @file The operators that tests run, each compiled once (operators_*.cpp).
#pragma once

#include "mori_ep/mori_ep.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {

template <class T, class Reduce = reduce::Sum, class Index = std::int32_t>
using Op = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<T>, exec::Host, Reduce, Index>;

template <class Operator>
std::string play_as(const Plan& plan);

extern template std::string play_as<Op<bf16>>(const Plan&);
extern template std::string play_as<Op<bf16, reduce::Sum, std::int64_t>>(const Plan&);
extern template std::string play_as<Op<bf16, reduce::WeightedSum>>(const Plan&);
extern template std::string play_as<Op<fp16>>(const Plan&);
extern template std::string play_as<Op<fp16, reduce::WeightedSum, std::int64_t>>(const Plan&);
extern template std::string play_as<Op<float>>(const Plan&);
extern template std::string play_as<Op<float, reduce::Sum, std::int64_t>>(const Plan&);
extern template std::string play_as<Op<float, reduce::WeightedSum>>(const Plan&);

//! @brief The element, reduction and id type of every operator above.
struct OperatorKind {
  Format format;
  Reduction reduction;
  Ids ids;
};
inline constexpr OperatorKind kOperators[] = {
    {Format::bf16, Reduction::sum, Ids::int32},      {Format::bf16, Reduction::sum, Ids::int64},
    {Format::bf16, Reduction::weighted, Ids::int32}, {Format::fp16, Reduction::sum, Ids::int32},
    {Format::fp16, Reduction::weighted, Ids::int64}, {Format::fp32, Reduction::sum, Ids::int32},
    {Format::fp32, Reduction::sum, Ids::int64},      {Format::fp32, Reduction::weighted, Ids::int32},
};

}  // namespace mori_ep::test
