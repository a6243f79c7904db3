// SPDX-License-Identifier: MIT
#include "operators.hpp"
#include "quantisation.hpp"
#include "rank.hpp"

namespace ep_bench {

Outcome run_coded(const Problem& problem, const mori_ep::Communicator& comm, Meeting& meeting,
                  const Progress& progress) {
  return with_quant(problem.config(),
                    [&]<class Quant>(Quant*) { return run_with<NodeOf<Quant>>(problem, comm, meeting, progress); });
}

}  // namespace ep_bench
