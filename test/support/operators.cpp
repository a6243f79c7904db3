// SPDX-License-Identifier: MIT
#include "support/operators.hpp"

namespace mori_ep::test {

std::string play(const Plan& plan) {
  const Setup& s = plan.setup;
  bool const wide = s.ids == Ids::int64, weighted = s.reduction == Reduction::weighted;
  std::string (*run)(const Plan&) = nullptr;
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
  std::string const wrong = run(plan);
  return wrong.empty() ? wrong : wrong + "\n  " + describe(plan);
}

}  // namespace mori_ep::test
