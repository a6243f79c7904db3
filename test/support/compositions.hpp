// SPDX-License-Identifier: MIT
//! @file What the operators that tests run are composed of, for the table that says so.
#pragma once

#include <string>
#include <vector>

#include "mori_ep/mori_ep.hpp"

namespace mori_ep::test {

struct Composition {
  std::string transport, network, schedule, machine;
  bool codes;
  Support support;  //!< what the library says of these types
};

template <class Operator>
struct CompositionOf;
template <class Transport, class Schedule, class Quant, class Exec, class Reduce, class Index>
struct CompositionOf<EpDispatchCombine<Transport, Schedule, Quant, Exec, Reduce, Index>> {
  static Composition value() {
    return {Transport::kName,
            network_name<Transport>(),
            Schedule::kName,
            Exec::kName,
            !(Element<typename Quant::Dispatch> && Element<typename Quant::Combine>),
            support_of<Transport, Schedule, Quant, Exec>()};
  }
};

template <class... Operators>
std::vector<Composition> compositions() {
  return {CompositionOf<Operators>::value()...};
}

//! @brief Those over RDMA, which inter_node_test runs where there is a device.
std::vector<Composition> verbs_compositions();

}  // namespace mori_ep::test
