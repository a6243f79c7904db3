// SPDX-License-Identifier: MIT
#include "element_types.hpp"
#include "operators.hpp"
#include "rank.hpp"

namespace ep_bench {

Outcome run_v1(const Problem& problem, const mori_ep::Communicator& comm, Meeting& meeting, const Progress& progress) {
  return with_element_type(problem.config().dtype, [&]<class T>(T) {
    return run_with<NodesOf<mori_ep::schedule::InterNodeV1, T>>(problem, comm, meeting, progress);
  });
}

}  // namespace ep_bench
