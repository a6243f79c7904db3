// SPDX-License-Identifier: MIT
//! @file Which compositions of EpDispatchCombine exist, and how far each is proven: one table for tools, README and
//! tests.
#pragma once

#include <cstdint>

#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/quant/none.hpp"
#include "mori_ep/schedule/intra_node.hpp"
#include "mori_ep/transport/xgmi.hpp"

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

//! @brief One composition, by the names its policies carry.
struct SupportRow {
  const char* transport;
  const char* schedule;
  const char* wire;
  const char* exec;
  Support support;
};

template <class Transport, class Schedule, class Quant, class Exec>
constexpr SupportRow support_row(Support support) noexcept {
  return {Transport::kName, Schedule::kName, Quant::kName, Exec::kName, support};
}

inline constexpr SupportRow kSupportMatrix[] = {
    support_row<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Host>(Support::tested),
    support_row<transport::Xgmi, schedule::IntraNode, quant::None<fp16>, exec::Host>(Support::tested),
    support_row<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>(Support::tested),
    {"xgmi", "IntraNode", "bf16, fp16, fp32", "cuda", Support::tested},
    {"xgmi", "IntraNode", "bf16, fp16, fp32", "hip", Support::compiled},
    {"hybrid, rdma over loopback", "InterNode, InterNodeV1", "bf16, fp16, fp32", "host", Support::tested},
    {"hybrid, rdma over loopback", "InterNode, InterNodeV1", "bf16, fp16, fp32", "cuda", Support::tested},
    {"hybrid, rdma over verbs", "InterNode, InterNodeV1", "bf16, fp16, fp32", "host", Support::tested},
    {"hybrid, rdma over verbs", "InterNode, InterNodeV1", "bf16, fp16, fp32", "cuda", Support::compiled},
    {"hybrid, rdma", "InterNode, InterNodeV1", "bf16, fp16, fp32", "hip", Support::planned},
    {"hybrid, rdma", "InterNodeV1LL, AsyncLL", "bf16, fp16, fp32", "host, cuda, hip", Support::planned},
    {"xgmi", "IntraNode", "fp8, fp4: coded on the way, or carried", "host", Support::tested},
    {"xgmi", "IntraNode", "fp8, fp4: coded on the way, or carried", "cuda", Support::tested},
    {"xgmi", "IntraNode", "fp8, fp4: coded on the way, or carried", "hip", Support::compiled},
    {"hybrid, rdma over loopback", "InterNode, InterNodeV1", "fp8, fp4: coded on the way, or carried", "host",
     Support::tested},
    {"hybrid, rdma over loopback", "InterNode, InterNodeV1", "fp8, fp4: coded on the way, or carried", "cuda",
     Support::tested},
    {"hybrid, rdma over verbs", "InterNode, InterNodeV1", "fp8, fp4: coded on the way, or carried", "host, cuda",
     Support::planned},
};

}  // namespace mori_ep
