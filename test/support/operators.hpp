// SPDX-License-Identifier: MIT
//! @file The operators that tests run, each compiled once (operators_*.cpp).
#pragma once

#include "mori_ep/fabric/device_loopback.hpp"
#include "mori_ep/mori_ep.hpp"
#include "support/machine.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {

template <class T, class Reduce = reduce::Sum, class Index = std::int32_t>
using Op = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<T>, Machine, Reduce, Index>;

//! @brief The same between nodes, over a network that promises no order; of fp16 with 64-bit ids inside a node, too.
template <class T, class Reduce = reduce::Sum, class Index = std::int32_t>
using NetworkOp = EpDispatchCombine<std::conditional_t<std::is_same_v<T, fp16> && sizeof(Index) == 8,
                                                       transport::Rdma<fabric::Loopback<fabric::Order::none>>,
                                                       transport::Hybrid<fabric::Loopback<fabric::Order::none>>>,
                                    schedule::InterNode, quant::None<T>, Machine, Reduce, Index>;

//! @brief The same with relays.
template <class T, class Reduce = reduce::Sum, class Index = std::int32_t>
using RelayOp = EpDispatchCombine<transport::Hybrid<fabric::Loopback<fabric::Order::none>>,
                                  schedule::InterNodeV1With<partial::Exact>, quant::None<T>, Machine, Reduce, Index>;
//! @brief Whose relays round, as they do unless told otherwise.
using RoundingRelayOp = EpDispatchCombine<transport::Hybrid<fabric::Loopback<fabric::Order::none>>,
                                          schedule::InterNodeV1, quant::None<bf16>, Machine, reduce::WeightedSum>;
//! @brief Over a network whose copies are kernels', without its faults.
using DeviceRelayOp = EpDispatchCombine<transport::Hybrid<fabric::DeviceLoopback<Machine>>,
                                        schedule::InterNodeV1With<partial::Exact>, quant::None<bf16>, Machine>;

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

extern template std::string play_as<NetworkOp<bf16>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<NetworkOp<bf16, reduce::Sum, std::int64_t>>(const Plan&,
                                                                                std::vector<std::uint64_t>*);
extern template std::string play_as<NetworkOp<bf16, reduce::WeightedSum>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<NetworkOp<fp16>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<NetworkOp<fp16, reduce::WeightedSum, std::int64_t>>(const Plan&,
                                                                                        std::vector<std::uint64_t>*);
extern template std::string play_as<NetworkOp<float>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<NetworkOp<float, reduce::Sum, std::int64_t>>(const Plan&,
                                                                                 std::vector<std::uint64_t>*);
extern template std::string play_as<NetworkOp<float, reduce::WeightedSum>>(const Plan&, std::vector<std::uint64_t>*);

extern template std::string play_as<RelayOp<bf16>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<RelayOp<bf16, reduce::Sum, std::int64_t>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<RelayOp<bf16, reduce::WeightedSum>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<RelayOp<fp16>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<RelayOp<fp16, reduce::WeightedSum, std::int64_t>>(const Plan&,
                                                                                      std::vector<std::uint64_t>*);
extern template std::string play_as<RelayOp<float>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<RelayOp<float, reduce::Sum, std::int64_t>>(const Plan&,
                                                                               std::vector<std::uint64_t>*);
extern template std::string play_as<RelayOp<float, reduce::WeightedSum>>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<RoundingRelayOp>(const Plan&, std::vector<std::uint64_t>*);
extern template std::string play_as<DeviceRelayOp>(const Plan&, std::vector<std::uint64_t>*);

//! @brief Plays the plan with the one of kOperators that it names, of which `Operator` is the template.
template <template <class, class, class> class Operator>
std::string play_with(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  using reduce::Sum, reduce::WeightedSum;
  using Narrow = std::int32_t;
  using Wide = std::int64_t;
  const Setup& s = plan.setup;
  bool const wide = s.ids == Ids::int64, weighted = s.reduction == Reduction::weighted;
  std::string (*run)(const Plan&, std::vector<std::uint64_t>*) = nullptr;
  if (s.format == Format::bf16)
    run = weighted ? (wide ? nullptr : play_as<Operator<bf16, WeightedSum, Narrow>>)
          : wide   ? play_as<Operator<bf16, Sum, Wide>>
                   : play_as<Operator<bf16, Sum, Narrow>>;
  else if (s.format == Format::fp16)
    run = weighted ? (wide ? play_as<Operator<fp16, WeightedSum, Wide>> : nullptr)
          : wide   ? nullptr
                   : play_as<Operator<fp16, Sum, Narrow>>;
  else
    run = weighted ? (wide ? nullptr : play_as<Operator<float, WeightedSum, Narrow>>)
          : wide   ? play_as<Operator<float, Sum, Wide>>
                   : play_as<Operator<float, Sum, Narrow>>;
  if (run == nullptr) return "test bug: this operator is not in kOperators";
  std::string const wrong = run(plan, hashes);
  return wrong.empty() ? wrong : wrong + "\n  " + describe(plan);
}
template <class Exec>
std::string play_on(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  static_assert(std::is_same_v<Exec, Machine>, "Operators of another machine are compiled for that machine.");
  return play_with<Op>(plan, hashes);
}

}  // namespace mori_ep::test
