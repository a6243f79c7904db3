// SPDX-License-Identifier: MIT
#include "operators.hpp"
#include "rank.hpp"

namespace ep_bench {

Outcome run_over_verbs(const Problem& problem, const mori_ep::Communicator& comm, Meeting& meeting,
                       const Progress& progress) {
  using mori_ep::bf16, mori_ep::fabric::Verbs;
  auto const environment = mori_ep::Environment::from_process();
  environment.status().or_throw();
  Verbs::Options const network(*environment);
  if (problem.config().schedule == "internode")
    return run_with<NodesOf<mori_ep::schedule::InterNode, bf16, Verbs>>(problem, comm, meeting, progress, network);
  return run_with<NodesOf<mori_ep::schedule::InterNodeV1, bf16, Verbs>>(problem, comm, meeting, progress, network);
}

}  // namespace ep_bench
