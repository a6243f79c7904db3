// SPDX-License-Identifier: MIT
// Two ranks make an operator for this compiler's GPU. Where there is none, every rank must get the same error, and this
// program prints it and returns 1. Compiled as HIP or CUDA.
#include <cstdio>
#include <string>

#include "mori_ep/mori_ep.hpp"

using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>>;

int main() {
  std::string seen[2];
  Status const status = LocalWorld(2).run([&](Communicator& comm) -> Status {
    auto const ep = Ep::create(
        comm,
        {.hidden_dim = 64, .max_num_inp_token_per_rank = 16, .num_experts_per_rank = 4, .num_experts_per_token = 2});
    seen[comm.rank()] = ep.message();
    return ep.status();
  });
  if (status.ok()) {
    std::printf("There is a GPU: nothing to show.\n");
    return 77;
  }
  std::printf("rank 0: %s\nrank 1: %s\n", seen[0].c_str(), seen[1].c_str());
  return seen[0] == seen[1] ? 1 : 2;
}
