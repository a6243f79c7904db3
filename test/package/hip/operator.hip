// SPDX-License-Identifier: MIT
#include <string>

#include "mori_ep/mori_ep.hpp"

using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Hip>;

std::string create_operator() {
  return LocalWorld(2)
      .run([](Communicator& comm) -> Status {
        return Ep::create(comm, {.hidden_dim = 64,
                                 .max_num_inp_token_per_rank = 16,
                                 .num_experts_per_rank = 4,
                                 .num_experts_per_token = 2})
            .status();
      })
      .message();
}
