// SPDX-License-Identifier: MIT
// Sizes: worlds, hidden sizes, token counts, scales, leading dimensions, offsets beyond 32 bits (E5 to E7, E11).
#include "support/catch.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {

TEST_CASE("worlds of 1 to 24 ranks, each with every operator in turn") {
  int turn = 0;
  for (int world : {1, 2, 3, 5, 8, 24})
    for (int experts_per_rank : {1, 4}) {
      OperatorKind const op = kOperators[turn++ % 8];
      Setup setup{.format = op.format, .ids = op.ids, .reduction = op.reduction, .world = world};
      setup.config.hidden_dim = 32;
      setup.config.num_experts_per_rank = experts_per_rank;
      setup.config.num_experts_per_token = 6;
      setup.config.max_num_inp_token_per_rank = 11;
      Plan plan = make_plan(setup, Routing::any, 3, static_cast<std::uint64_t>(world));
      plan.calls[1].zero_copy = plan.calls[2].return_weights = true;
      REQUIRE(play(plan) == "");
    }
}

// Their streams must all run at the same time: more than one GPU has queues for.
TEST_CASE("more than 64 ranks", "[host_only]") {
  for (int world : {65, 72}) {
    Setup setup{.format = Format::bf16, .world = world};
    setup.config.hidden_dim = 8;
    setup.config.num_experts_per_rank = 1;
    setup.config.num_experts_per_token = 5;
    setup.config.max_num_inp_token_per_rank = 3;
    Plan plan = make_plan(setup, Routing::any, 2, 21);
    // Pairs on both sides of rank 64, and what lies at the very end.
    for (auto& tokens : plan.calls[1].tokens)
      for (std::size_t i = 0; i < tokens.ids.size(); ++i)
        tokens.ids[i] = std::vector<std::int64_t>{63, 64, world - 1, 0, 64}[i % 5];
    plan.calls[1].return_weights = true;
    REQUIRE(play(plan) == "");
  }
}

TEST_CASE("hidden sizes that are multiples of nothing but 16 bytes") {
  for (int hidden : {8, 16, 24, 40, 96, 1000, 2880, 3584, 7168, 8192, 16384})
    for (Format const format : {Format::bf16, Format::fp32}) {
      Setup setup{.format = format, .world = 2};
      setup.config.hidden_dim = hidden;
      setup.config.max_num_inp_token_per_rank = hidden > 4000 ? 3 : 6;
      Plan plan = make_plan(setup, Routing::uniform, 2, static_cast<std::uint64_t>(hidden));
      plan.calls[0].zero_copy = true;
      plan.calls[1].pad = 1;
      REQUIRE(play(plan) == "");
    }
  Setup setup{.format = Format::fp32, .world = 2};  // and a row of one vector
  setup.config.hidden_dim = 4;
  REQUIRE(play(make_plan(setup, Routing::uniform, 2, 4)) == "");
}

TEST_CASE("payloads large enough for streaming stores") {
  // A launch chooses them from 1 MiB on.
  Setup setup{.format = Format::bf16, .world = 3};
  setup.config.hidden_dim = 7176;
  setup.config.max_num_inp_token_per_rank = scaled(64, 32);
  setup.config.num_experts_per_token = 3;
  Plan plan = make_plan(setup, Routing::uniform, 2, 22);
  plan.calls[0].zero_copy = true;
  plan.calls[0].blocks = 3;
  plan.calls[1].return_weights = true;
  REQUIRE(play(plan) == "");
}

TEST_CASE("token limits of 1, 31, 33 and 256, used in full and in part") {
  for (int max : {1, 31, 33, 256})
    for (int blocks : {0, 4}) {
      Setup setup{.format = Format::fp16, .world = 3};
      setup.config.hidden_dim = 16;
      setup.config.max_num_inp_token_per_rank = max;
      setup.config.block_num = blocks;
      setup.config.num_experts_per_token = 3;
      Rng rng(static_cast<std::uint64_t>(max));
      Plan plan{.setup = setup, .calls = {}, .steps = {}};
      plan.calls.push_back(make_call(setup, Routing::any, {max}, rng));
      plan.calls.push_back(make_call(setup, Routing::any, {max, max - 1, 1}, rng));
      plan.calls.push_back(make_call(setup, Routing::any, {1, max, max / 2}, rng));
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("token counts around a tile, a window, and what blocks count alone") {
  for (int max : {31, 32, 33, 63, 64, 65, 129, 513, 4096, 4097, 8300})
    for (int blocks : {1, 3})
      for (int topk : {3, 12}) {
        Setup setup{.format = Format::bf16, .world = 2};
        setup.config.hidden_dim = 8;
        setup.config.max_num_inp_token_per_rank = max;
        setup.config.block_num = blocks;
        setup.config.num_experts_per_rank = 5;
        setup.config.num_experts_per_token = topk;
        setup.config.scale_dim = 3, setup.config.scale_type_size = 1;
        if (max % 2 == 1) setup.config.max_total_recv_tokens = max + max / 2;  // rows at the end find no room
        Rng rng(static_cast<std::uint64_t>(max + topk));
        Plan plan{.setup = setup, .calls = {}, .steps = {}};
        plan.calls.push_back(make_call(setup, Routing::any, {max}, rng));
        plan.calls.push_back(make_call(setup, Routing::invalid, {max, 2}, rng));
        plan.calls[1].return_weights = true;
        REQUIRE(play(plan) == "");
      }
}

TEST_CASE("scales of 0 to 224 bytes and any type size") {
  for (auto [dim, size] : {std::pair{1, 1}, {1, 4}, {7, 8}, {56, 1}, {56, 4}, {3, 5}, {1000, 1}}) {
    Setup setup{.format = Format::bf16, .world = 3};
    setup.config.scale_dim = dim;
    setup.config.scale_type_size = size;
    Plan plan = make_plan(setup, Routing::any, 2, static_cast<std::uint64_t>(dim));
    plan.calls[1].pad = 3;
    REQUIRE(play(plan) == "");
  }
}

TEST_CASE("leading dimensions beyond the width, weights given or not, rows beyond the count") {
  for (OperatorKind const op : kOperators)
    for (int pad : {1, 3}) {
      Setup setup{.format = op.format, .ids = op.ids, .reduction = op.reduction, .world = 3, .own_memory = true};
      setup.config.hidden_dim = 24;
      setup.config.num_experts_per_token = 3;
      setup.config.scale_dim = 5, setup.config.scale_type_size = 1;
      Plan plan = make_plan(setup, Routing::any, 3, static_cast<std::uint64_t>(pad));
      for (std::size_t i = 0; i < 3; ++i) {
        plan.calls[i].pad = pad;
        plan.calls[i].return_weights = i != 1;
        plan.calls[i].weights = i != 2 || op.reduction == Reduction::weighted;
        plan.calls[i].extra_rows = static_cast<int>(i);
        plan.calls[i].zero_copy = i == 1;
      }
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("arenas whose regions start beyond 2^32 bytes") {
  Setup setup{.format = Format::bf16, .world = 2};
  setup.config.hidden_dim = 8192;
  setup.config.max_num_inp_token_per_rank = 200'000;  // 6.5 GB of rows received; only pages that are used exist
  Rng rng(23);
  Plan plan{.setup = setup, .calls = {}, .steps = {}};
  for (int i = 0; i < 2; ++i) plan.calls.push_back(make_call(setup, Routing::any, {5, 3}, rng));
  plan.calls[1].zero_copy = true;
  REQUIRE(play(plan) == "");
}

}  // namespace mori_ep::test
