// SPDX-License-Identifier: MIT
//! @file The operators that tests run, each compiled once (operators_*.cpp).
#pragma once

#include "mori_ep/mori_ep.hpp"
#include "support/machine.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {

template <class T, class Reduce = reduce::Sum, class Index = std::int32_t>
using Op = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<T>, Machine, Reduce, Index>;

template <class Operator>
std::string play_as(const Plan& plan, std::vector<std::uint64_t>* hashes);

// One for each of kOperators.
extern template std::string play_as<Op<bf16>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<Op<bf16, reduce::Sum, std::int64_t>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<Op<bf16, reduce::WeightedSum>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<Op<fp16>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<Op<fp16, reduce::WeightedSum, std::int64_t>>(const Plan&,
                                                                                 std::vector<std::uint64_t>*);
extern template std::string play_as<Op<float>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<Op<float, reduce::Sum, std::int64_t>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<Op<float, reduce::WeightedSum>>(const Plan&, std::vector<std::uint64_t>*);

//! @brief Plays the plan with the operator that it names.
template <class Exec>
std::string play_on(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  static_assert(std::is_same_v<Exec, Machine>, "Operators of another machine are compiled for that machine.");
  const Setup& s = plan.setup;
  bool const wide = s.ids == Ids::int64, weighted = s.reduction == Reduction::weighted;
  std::string (*run)(const Plan&, std::vector<std::uint64_t>*) = nullptr;
  if (s.format == Format::bf16)
    run = weighted ? (wide ? nullptr : play_as<Op<bf16, reduce::WeightedSum>>)
          : wide   ? play_as<Op<bf16, reduce::Sum, std::int64_t>>
                   : play_as<Op<bf16>>;
  else if (s.format == Format::fp16)
    run = weighted ? (wide ? play_as<Op<fp16, reduce::WeightedSum, std::int64_t>> : nullptr)
          : wide   ? nullptr
                   : play_as<Op<fp16>>;
  else
    run = weighted ? (wide ? nullptr : play_as<Op<float, reduce::WeightedSum>>)
          : wide   ? play_as<Op<float, reduce::Sum, std::int64_t>>
                   : play_as<Op<float>>;
  if (run == nullptr) return "test bug: this operator is not in kOperators";
  std::string const wrong = run(plan, hashes);
  return wrong.empty() ? wrong : wrong + "\n  " + describe(plan);
}

}  // namespace mori_ep::test
