// SPDX-License-Identifier: MIT
//! @file The operators that are measured on the host.
#pragma once

#include "mori_ep/fabric/verbs.hpp"
#include "mori_ep/mori_ep.hpp"
#include "run.hpp"

namespace ep_bench {

template <class Quant>
using NodeOf =
    mori_ep::EpDispatchCombine<mori_ep::transport::Xgmi, mori_ep::schedule::IntraNode, Quant, mori_ep::exec::Host>;
template <class Schedule, class T, class Fabric = mori_ep::fabric::Loopback<>>
using NodesOf = mori_ep::EpDispatchCombine<mori_ep::transport::Hybrid<Fabric>, Schedule, mori_ep::quant::None<T>,
                                           mori_ep::exec::Host>;

// Each compiled by itself; as run_rank().
[[nodiscard]] Outcome run_coded(const Problem& problem, const mori_ep::Communicator& comm, Meeting& meeting,
                                const Progress& progress);
[[nodiscard]] Outcome run_internode(const Problem& problem, const mori_ep::Communicator& comm, Meeting& meeting,
                                    const Progress& progress);
[[nodiscard]] Outcome run_v1(const Problem& problem, const mori_ep::Communicator& comm, Meeting& meeting,
                             const Progress& progress);
//! @brief Either of them, with bf16.
[[nodiscard]] Outcome run_over_verbs(const Problem& problem, const mori_ep::Communicator& comm, Meeting& meeting,
                                     const Progress& progress);

}  // namespace ep_bench
