// SPDX-License-Identifier: MIT
// One arithmetic: what dispatch and combine give on the GPU has the bytes that they give on the host.
#include <vector>

#include "support/catch.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {

TEST_CASE("host and GPU give the same bytes") {
  for (OperatorKind const op : kOperators)
    for (int group : {0, 2}) {
      Setup setup{.format = op.format, .ids = op.ids, .reduction = op.reduction, .world = 6};
      setup.config.hidden_dim = 1000;
      setup.config.max_num_inp_token_per_rank = 33;
      setup.config.num_experts_per_rank = 4;
      setup.config.num_experts_per_token = 9;
      setup.config.scale_dim = 7, setup.config.scale_type_size = 3;
      setup.config.reduce_gpu_per_node = group;
      Rng rng(mix(97, static_cast<std::uint64_t>(group)));
      Plan plan{.setup = setup, .calls = {}, .steps = {}};
      for (Routing const routing : {Routing::uniform, Routing::any, Routing::invalid, Routing::skewed})
        plan.calls.push_back(make_call(setup, routing, {33, 0, 20, 33, 1, 32}, rng));
      plan.calls[1].zero_copy = true;
      plan.calls[2].return_weights = plan.calls[3].return_weights = true;
      std::vector<std::uint64_t> here, on_host;
      INFO(describe(plan));
      REQUIRE(play(plan, &here) == "");
      REQUIRE(play_on_host(plan, &on_host) == "");
      REQUIRE(here.size() == 4 * 6);
      REQUIRE(here == on_host);
    }
}

}  // namespace mori_ep::test
