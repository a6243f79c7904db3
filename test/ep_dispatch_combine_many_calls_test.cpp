// SPDX-License-Identifier: MIT
// Many calls without a synchronisation in between, late ranks, epochs across the wrap (E8, E10).
#include "support/catch.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {
namespace {

constexpr Routing kMixed[] = {Routing::any,        Routing::uniform,   Routing::one_expert, Routing::own_rank,
                              Routing::all_masked, Routing::never_own, Routing::invalid,    Routing::skewed};

//! `calls` calls of varying size and routing.
Plan varying(const Setup& setup, int calls, std::uint64_t seed) {
  Rng rng(seed);
  Plan plan{.setup = setup, .calls = {}, .steps = {}};
  for (int i = 0; i < calls; ++i) {
    std::vector<int> counts;
    for (int r = 0; r < setup.world; ++r) counts.push_back(rng.in(0, setup.config.max_num_inp_token_per_rank));
    plan.calls.push_back(make_call(setup, rng.of(kMixed), counts, rng));
    plan.calls.back().zero_copy = rng.one_in(2);
    plan.calls.back().return_weights = rng.one_in(4);
  }
  return plan;
}

}  // namespace

TEST_CASE("a thousand calls without a synchronisation, all verified at the end") {
  Setup setup{.format = Format::bf16, .world = 4};
  setup.config.hidden_dim = 16;
  setup.config.num_experts_per_token = 3;
  setup.config.max_num_inp_token_per_rank = 3;
  REQUIRE(play(varying(setup, 1000, 51)) == "");
}

TEST_CASE("hundreds of calls on two buffer sets and two streams, several blocks, a random pause before every kernel") {
  Setup setup{.format = Format::fp32, .ids = Ids::int64, .world = 3, .streams = 2, .jitter_us = 200};
  setup.config.hidden_dim = 16;
  setup.config.num_experts_per_token = 4;
  setup.config.max_num_inp_token_per_rank = 5;
  setup.config.num_buffer_sets = 2;
  setup.config.block_num = 2;
  int const calls = scaled(300, 80);
  Plan plan = varying(setup, calls, 52);
  for (int i = 0; i < calls; i += 2)
    plan.steps.insert(plan.steps.end(), {{Step::dispatch, i},
                                         {Step::dispatch, i + 1},
                                         {Step::combine, i + i % 4 / 2},
                                         {Step::combine, i + 1 - i % 4 / 2}});
  REQUIRE(play(plan) == "");
}

TEST_CASE("dispatch after dispatch without a combine") {
  Setup setup{.format = Format::bf16, .world = 4, .jitter_us = 60};
  setup.config.hidden_dim = 16;
  setup.config.max_num_inp_token_per_rank = 4;
  Plan plan = varying(setup, 100, 53);
  for (int i = 0; i < 100; ++i) plan.steps.insert(plan.steps.end(), {{Step::dispatch, i}, {Step::drop, i}});
  REQUIRE(play(plan) == "");
}

TEST_CASE("one rank is late by several calls of the others") {
  for (int late = 0; late < 3; ++late)
    for (Routing const routing : {Routing::any, Routing::never_own, Routing::own_rank}) {
      Setup setup{.format = Format::bf16, .world = 3};
      setup.config.hidden_dim = 16;
      Plan plan = make_plan(setup, routing, 6, 54);
      for (std::size_t i : {1u, 3u, 4u}) {
        plan.calls[i].delay_us.assign(3, 0);
        plan.calls[i].delay_us[static_cast<std::size_t>(late)] = 20000;
      }
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("epochs cross the wrap") {
  for (std::uint32_t first : {0xffffffffu, 0xfffffffeu, 0xffffffffu - 2, 0x7ffffffeu, 0x80000000u, 12345u})
    for (int sets : {1, 2}) {
      Setup setup{.format = Format::bf16, .world = 3, .jitter_us = 50};
      setup.config.hidden_dim = 16;
      setup.config.first_epoch = first;
      setup.config.num_buffer_sets = sets;
      REQUIRE(play(varying(setup, 10, first)) == "");
    }
}

TEST_CASE("operators come and go") {
  for (int i = 0; i < scaled(40, 15); ++i) {
    Setup setup{.format = Format::bf16, .world = 1 + i % 4};
    setup.config.block_num = 1 + i % 3;
    REQUIRE(play(varying(setup, i % 3, static_cast<std::uint64_t>(i))) == "");
  }
}

}  // namespace mori_ep::test
