// SPDX-License-Identifier: MIT
// The same bytes whatever the number of blocks and warps, the machine's timing and the run (E20).
#include <vector>

#include "support/catch.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {
namespace {

//! Plays the plan and gives a hash of all bytes that came out, by call and rank.
std::vector<std::uint64_t> hashes(const Plan& plan) {
  std::vector<std::uint64_t> out;
  REQUIRE(play(plan, &out) == "");
  return out;
}

}  // namespace

TEST_CASE("any number of blocks and warps gives the same bytes") {
  Setup setup{.format = Format::bf16, .world = 3};
  setup.config.hidden_dim = 40;
  setup.config.num_experts_per_rank = 4;
  setup.config.num_experts_per_token = 5;
  setup.config.max_num_inp_token_per_rank = 29;
  Rng rng(61);
  Plan plan{.setup = setup, .calls = {}, .steps = {}};
  plan.calls.push_back(make_call(setup, Routing::any, {29}, rng));
  plan.calls.push_back(make_call(setup, Routing::invalid, {1, 29, 13}, rng));
  plan.calls.push_back(make_call(setup, Routing::skewed, {2, 3, 0}, rng));
  for (Call& call : plan.calls) call.return_weights = true;
  std::vector<std::uint64_t> const reference = hashes(plan);
  REQUIRE(reference[0] != reference[1]);
  for (int blocks : {1, 2, 3, 5, 7, 16})
    for (int warps : {1, 2, 3}) {
      INFO(blocks << " blocks of " << warps << " warps");
      plan.setup.config.block_num = blocks;
      plan.setup.config.warp_num_per_block = warps;
      plan.setup.jitter_us = 10 * warps;
      REQUIRE(hashes(plan) == reference);
    }
}

TEST_CASE("the launch of a call comes before the configured one, and may differ from rank to rank and phase to phase") {
  Setup setup{.format = Format::bf16, .world = 3};
  setup.config.hidden_dim = 24;
  setup.config.max_num_inp_token_per_rank = 17;
  setup.config.num_experts_per_token = 3;
  setup.config.block_num = 2;
  Plan plan = make_plan(setup, Routing::any, 12, 62);
  std::vector<std::uint64_t> const reference = hashes(plan);
  for (std::size_t i = 0; i < plan.calls.size(); ++i) {
    plan.calls[i].blocks = static_cast<int>(1 + (7 * i) % 11), plan.calls[i].warps = static_cast<int>(1 + i % 3);
    plan.calls[i].mixed_launch = i % 2 == 0;
  }
  REQUIRE(hashes(plan) == reference);
}

TEST_CASE("repeated runs give the same bytes") {
  Setup setup{.format = Format::fp32, .world = 4, .jitter_us = 200};
  setup.config.hidden_dim = 16;
  setup.config.num_experts_per_token = 4;
  setup.config.block_num = 3;
  Plan const plan = make_plan(setup, Routing::any, 4, 63);
  std::vector<std::uint64_t> const reference = hashes(plan);
  for (int run = 0; run < scaled(10, 4); ++run) REQUIRE(hashes(plan) == reference);
}

}  // namespace mori_ep::test
