// SPDX-License-Identifier: MIT
// Which tokens go where: patterns, masks, duplicates, invalid ids, zero tokens (E1 to E4).
#include "support/catch.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {

TEST_CASE("every routing pattern with every operator") {
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

TEST_CASE("every routing pattern in a world of one and of eight") {
  for (int world : {1, 8})
    for (Routing const routing : kRoutings) {
      Setup setup{.format = Format::bf16, .ids = Ids::int64, .world = world};
      setup.config.hidden_dim = 40;
      setup.config.num_experts_per_rank = 4;
      setup.config.num_experts_per_token = 8;
      setup.config.max_num_inp_token_per_rank = 13;
      Plan plan = make_plan(setup, routing, 2, 100 + mix(static_cast<std::uint64_t>(routing)));
      plan.calls[1].zero_copy = true;
      INFO(name(routing));
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("ranks without tokens take part like any other") {
  std::vector<std::vector<int>> const counts = {{0, 0, 0, 0}, {0, 5, 5, 5}, {5, 5, 0, 5}, {0, 0, 0, 5},
                                                {5, 0, 0, 0}, {0, 1, 0, 1}, {5, 4, 3, 2}, {1, 0, 5, 0}};
  for (OperatorKind const op : {kOperators[0], kOperators[7]})
    for (bool const split : {false, true}) {
      Setup setup{.format = op.format, .ids = op.ids, .reduction = op.reduction, .world = 4};
      setup.config.hidden_dim = 16;
      setup.config.max_num_inp_token_per_rank = 5;
      setup.config.scale_dim = 3, setup.config.scale_type_size = 1;
      Rng rng(11);
      Plan plan{.setup = setup, .calls = {}, .steps = {}};
      // Each, then several calls without any token in a row, then each again in the other order.
      for (const auto& c : counts) plan.calls.push_back(make_call(setup, Routing::any, c, rng));
      for (int i = 0; i < 4; ++i) plan.calls.push_back(make_call(setup, Routing::any, {0}, rng));
      for (auto c = counts.rbegin(); c != counts.rend(); ++c)
        plan.calls.push_back(make_call(setup, Routing::any, *c, rng));
      for (std::size_t i = 0; i < plan.calls.size(); ++i) {
        plan.calls[i].zero_copy = i % 3 == 0;
        plan.calls[i].return_weights = i % 2 == 0;
        int const n = static_cast<int>(i);
        if (split)
          plan.steps.insert(plan.steps.end(),
                            {{Step::send, n}, {Step::recv, n}, {Step::combine_send, n}, {Step::combine_recv, n}});
      }
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("top-k from 1 to 32, beyond the world and up to all experts") {
  for (int k : {1, 2, 8, 9, 31, 32})
    for (Routing const routing : {Routing::uniform, Routing::any, Routing::invalid}) {
      Setup setup{.format = Format::fp16, .world = 3};
      setup.config.hidden_dim = 16;
      setup.config.num_experts_per_rank = 11;
      setup.config.num_experts_per_token = k;
      setup.config.max_num_inp_token_per_rank = 7;
      Plan plan = make_plan(setup, routing, 2, static_cast<std::uint64_t>(k));
      plan.calls[0].return_weights = true;
      REQUIRE(play(plan) == "");
    }
  Setup setup{.world = 4};  // k == E, one expert per rank
  setup.config.num_experts_per_rank = 1;
  setup.config.num_experts_per_token = 4;
  REQUIRE(play(make_plan(setup, Routing::uniform, 2, 12)) == "");
}

TEST_CASE("payloads, weights and scales are bytes: NaN, infinity and denormal bits arrive unchanged") {
  for (Format const format : {Format::bf16, Format::fp16, Format::fp32}) {
    Setup setup{.format = format, .world = 3};
    setup.config.hidden_dim = 64;
    setup.config.scale_dim = 7, setup.config.scale_type_size = 3;
    Plan plan = make_plan(setup, Routing::any, 1, 13);
    Rng rng(14);
    for (auto& tokens : plan.calls[0].tokens)
      for (auto& byte : tokens.x) byte = static_cast<std::byte>(rng.next());
    plan.steps = {{Step::dispatch, 0}, {Step::drop, 0}};  // sums of NaNs are not this test's business
    REQUIRE(play(plan) == "");
  }
}

}  // namespace mori_ep::test
