// SPDX-License-Identifier: MIT
// Which tokens go where: routing patterns, masks, duplicates, invalid ids, zero tokens, worlds and top-k (E1 to E6).
#include "support/catch.hpp"
#include "support/operators.hpp"

namespace mori_ep::test {

TEST_CASE("every routing pattern with every operator", "[ep_dispatch_combine_routing]") {
  for (OperatorKind const op : kOperators)
    for (Routing const routing : kRoutings) {
      Setup setup{.format = op.format, .ids = op.ids, .reduction = op.reduction, .world = 3};
      setup.config.hidden_dim = 24;
      setup.config.num_experts_per_rank = 3;
      setup.config.num_experts_per_token = 4;
      setup.config.max_num_inp_token_per_rank = 9;
      Plan plan = make_plan(setup, routing, 2, mix(static_cast<std::uint64_t>(routing)));
      plan.calls[1].zero_copy = true;
      plan.calls[0].return_weights = true;
      INFO(name(routing));
      REQUIRE(play(plan) == "");
    }
}

}  // namespace mori_ep::test
