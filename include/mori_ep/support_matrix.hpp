// SPDX-License-Identifier: MIT
//! @file Which compositions of EpDispatchCombine exist, and how far each is proven: one table for programs, README and
//!       tests.
#pragma once

#include <cstdint>
#include <string_view>

#include "mori_ep/exec/conversions.hpp"
#include "mori_ep/quant/policy.hpp"

namespace mori_ep {

//! @brief How far a composition is proven.
enum class Support : std::uint8_t {
  tested,    //!< runs in the test suite
  compiled,  //!< compiles in the checks; never run
  planned    //!< not there yet
};

constexpr const char* name(Support support) noexcept {
  switch (support) {
    case Support::tested:
      return "tested";
    case Support::compiled:
      return "compiled";
    case Support::planned:
      return "planned";
  }
  return "";
}

//! @brief Compositions, by the names their policies carry.
struct SupportRow {
  const char* transport;
  const char* network;   //!< its fabric; "none" where all ranks load and store
  const char* schedule;  //!< InterNodeV1 stands for its exact form, too: one of the two is enough
  const char* machine;   //!< the execution policy
  Support elements;      //!< rows of bf16, fp16 or fp32 both ways
  Support codes;         //!< rows of codes, of the caller's or made on the way, in one direction or both
};

inline constexpr SupportRow kSupportMatrix[] = {
    {"xgmi", "none", "IntraNode", "host", Support::tested, Support::tested},
    {"xgmi", "none", "IntraNode", "cuda", Support::tested, Support::tested},
    {"xgmi", "none", "IntraNode", "hip", Support::compiled, Support::compiled},
    {"hybrid", "loopback", "InterNode", "host", Support::tested, Support::tested},
    {"hybrid", "loopback", "InterNode", "cuda", Support::tested, Support::tested},
    {"hybrid", "loopback", "InterNodeV1", "host", Support::tested, Support::tested},
    {"hybrid", "loopback", "InterNodeV1", "cuda", Support::tested, Support::tested},
    {"hybrid", "device loopback", "InterNodeV1", "host", Support::tested, Support::planned},
    {"hybrid", "device loopback", "InterNodeV1", "cuda", Support::tested, Support::planned},
    {"hybrid", "verbs", "InterNode", "host", Support::tested, Support::planned},
    {"hybrid", "verbs", "InterNodeV1", "host", Support::tested, Support::tested},
    {"hybrid", "verbs", "InterNodeV1", "cuda", Support::compiled, Support::planned},
    {"rdma", "loopback", "InterNode", "host", Support::tested, Support::tested},
    {"rdma", "loopback", "InterNode", "cuda", Support::tested, Support::planned},
    {"rdma", "loopback", "InterNodeV1", "host", Support::planned, Support::tested},
};

//! @brief What the table says of a composition; `planned` of one that it does not have.
constexpr Support support_of(std::string_view transport, std::string_view network, std::string_view schedule,
                             std::string_view machine, bool codes) noexcept {
  for (const SupportRow& row : kSupportMatrix)
    if (row.transport == transport && row.network == network && row.machine == machine &&
        (row.schedule == schedule || (schedule.starts_with("InterNodeV1 ") && schedule.substr(0, 11) == row.schedule)))
      return codes ? row.codes : row.elements;
  return Support::planned;
}

//! @brief The name of a transport's network, as SupportRow has it.
template <class Transport>
constexpr const char* network_name() noexcept {
  if constexpr (requires { Transport::Fabric::kName; })
    return Transport::Fabric::kName;
  else
    return "none";
}

//! @brief The same, of an operator's policies: support_of<transport::Xgmi, schedule::IntraNode, quant::None<bf16>,
//!        exec::Host>() is Support::tested.
template <class Transport, class Schedule, quant::QuantPolicy Quant, class Exec>
constexpr Support support_of() noexcept {
  constexpr bool kElements = Element<typename Quant::Dispatch> && Element<typename Quant::Combine>;
  return support_of(Transport::kName, network_name<Transport>(), Schedule::kName, Exec::kName, !kElements);
}

}  // namespace mori_ep
