// SPDX-License-Identifier: MIT
// Nodes joined by relays: the rows of the contract, the bits of every other schedule, whatever the network does and
// however records fall into chunks. Every plan of the other tests is played so, too (ctest -R mori_ep.relays).
#include "mori_ep/schedule/inter_node_v1.hpp"

#include <cstdio>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/harness.hpp"
#include "support/nodes.hpp"

namespace mori_ep::test {

using std::chrono::milliseconds;

TEST_CASE(
    "relays between one to five nodes of one to eight ranks: rows and sums of the contract, over a rough network") {
  auto const seed = env_number("MORI_EP_TEST_SEED", 20260901);
  std::printf("relays: MORI_EP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::uint64_t round = 0;
  for (int nodes : {1, 2, 3, 4, 5})
    for (int gpu_per_node : {1, 2, 3, 4, 8}) {
      if (nodes * gpu_per_node > (kSanitized ? 9 : 16)) continue;
      for (int missing = 0; missing < gpu_per_node; missing += 1 + gpu_per_node / 3) {  // the last node may be smaller
        Rng rng(mix(seed, ++round));
        Plan plan = uneven_plan(kOperators[round % 8], nodes, gpu_per_node, missing, rng);
        if (round % 4 != 0) plan.setup.loopback = rough(rng);
        INFO(nodes << " nodes of " << gpu_per_node << ", seed " << seed << " round " << round);
        REQUIRE(play_by_relays(plan) == "");
      }
    }
}

TEST_CASE("a node that is told to reduce as nodes do, nodes, and nodes with relays give the same bits") {
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    Rng rng(mix(seed, 77));
    int const gpu_per_node = rng.in(1, 3), nodes = rng.in(2, 3);
    Plan plan = uneven_plan(kOperators[seed % 8], nodes, gpu_per_node, 0, rng);
    plan.setup.loopback = rough(rng);
    INFO("seed " << seed);
    require_same_bits(plan);
  }
}

TEST_CASE("records that fill chunks, but for one, and one more") {
  constexpr int kChunk = 4;
  std::uint64_t seed = 0;
  for (int tokens : {1, kChunk - 1, kChunk, kChunk + 1, 2 * kChunk - 1, 2 * kChunk, 2 * kChunk + 1, 33})
    for (Routing routing : {Routing::uniform, Routing::one_rank, Routing::never_own}) {
      Rng rng(mix(++seed, 80));
      Setup setup{
          .format = Format::fp32, .ids = Ids::int32, .reduction = Reduction::sum, .world = 5, .gpu_per_node = 2};
      EpDispatchCombineConfig& c = setup.config;
      c.hidden_dim = 8;
      c.max_num_inp_token_per_rank = tokens;
      c.num_experts_per_rank = 2;
      c.num_experts_per_token = 2;
      c.rows_per_put = kChunk;
      c.block_num = rng.in(1, 5);
      c.warp_num_per_block = rng.in(1, 3);
      setup.loopback = rough(rng);
      Plan plan{.setup = setup, .calls = {}, .steps = {}};
      plan.calls.push_back(make_call(setup, routing, std::vector<int>(5, tokens), rng));
      std::vector<int> one(5, 0);
      one[static_cast<std::size_t>(rng.in(0, 4))] = tokens;  // the others have nothing to send
      plan.calls.push_back(make_call(setup, routing, one, rng));
      INFO(tokens << " tokens, seed " << seed);
      REQUIRE(play_by_relays(plan) == "");
    }
}

TEST_CASE("any number of blocks that only relay, beside any that send, or a refusal") {
  std::uint64_t seed = 0;
  for (int blocks : {1, 2, 3, 5, 7, 12})
    for (int relays : {0, 1, 2, 4, 6, 11}) {
      if (relays >= blocks) continue;
      Rng rng(mix(++seed, 86));
      Plan plan = uneven_plan(kOperators[seed % 8], rng.in(2, 3), rng.in(1, 3), 0, rng);
      EpDispatchCombineConfig& c = plan.setup.config;
      c.block_num = blocks;
      c.rdma_block_num = relays;
      c.warp_num_per_block = rng.in(1, 3);
      c.rows_per_put = rng.in(1, 20);
      if (rng.one_in(2)) plan.setup.loopback = rough(rng);
      INFO(blocks << " blocks, of which relay " << relays << ", seed " << seed);
      REQUIRE(play_by_relays(plan) == "");
    }
  Complaints wrong;
  Status const s = comm::LocalWorld(2, 1).run([&](comm::Communicator& comm) -> Status {
    EpDispatchCombineConfig config{.hidden_dim = 4,
                                   .max_num_inp_token_per_rank = 1,
                                   .num_experts_per_rank = 1,
                                   .num_experts_per_token = 1,
                                   .block_num = 3};
    for (int relays : {-1, 3}) {
      config.rdma_block_num = relays;
      wrong.refused(RelayOp<float>::create(comm, config).status(), Errc::invalid_config, "rdma_block_num", relays, 2);
    }
    config.rdma_block_num = 1;
    wrong.refused(NetworkOp<float>::create(comm, config).status(), Errc::invalid_config, "rdma_block_num", 1, 0);
    auto op = RelayOp<float>::create(comm, config);
    if (!op.ok()) return op.status();
    Stream stream;
    Vector<float> const x(4);
    Vector<std::int32_t> const ids(1);
    typename RelayOp<float>::DispatchInputs in{.input = {x.data(), 1, 4}, .indices = {ids.data(), 1, 1}};
    in.launch = {.block_num = 2, .rdma_block_num = 2};
    wrong.refused(op->dispatch(in, stream).status(), Errc::invalid_argument, "rdma_block_num", 2, 1);
    in.launch = {.block_num = 1};  // and the config's one
    wrong.refused(op->dispatch(in, stream).status(), Errc::invalid_argument, "rdma_block_num", 1, 0);
    return {};
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("relays that round, and a world whose tokens are counted window by window") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    Rng rng(mix(seed, 81));
    Plan plan = uneven_plan({Format::bf16, Reduction::weighted, Ids::int32}, rng.in(2, 4), rng.in(1, 3), 0, rng);
    plan.setup.loopback = rough(rng);
    INFO("seed " << seed);
    REQUIRE(play_by_rounding_relays(plan) == "");
  }
  Rng rng(82);
  Setup setup{.format = Format::bf16, .ids = Ids::int32, .reduction = Reduction::weighted, .gpu_per_node = 8};
  setup.world = kSanitized ? 24 : 64;
  EpDispatchCombineConfig& c = setup.config;
  c.hidden_dim = 8;
  c.max_num_inp_token_per_rank = 2100;
  c.num_experts_per_rank = 1;
  c.num_experts_per_token = 3;
  c.max_total_recv_tokens = 1500;
  c.block_num = 2;
  Plan plan{.setup = setup, .calls = {}, .steps = {}};
  std::vector<int> counts(static_cast<std::size_t>(setup.world), 5);
  counts[1] = 2100, counts[9] = 1000;
  plan.calls.push_back(make_call(setup, Routing::uniform, counts, rng));
  REQUIRE(play_by_rounding_relays(plan) == "");
}

TEST_CASE("a ticket that is dropped before or after its combine is on its way does relays no harm") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(mix(seed, 83));
    Plan plan = uneven_plan(kOperators[seed % 8], 3, rng.in(1, 2), 0, rng);
    plan.setup.loopback = rough(rng);
    plan.setup.loopback.most_delay = milliseconds(2);
    plan.setup.config.first_epoch = 0u - rng.in(0, 3);
    plan.setup.config.rows_per_put = rng.in(1, 10);
    for (int call = 0; call < 3; ++call) {
      plan.steps.push_back({Step::dispatch, call});
      if (rng.one_in(2)) plan.steps.push_back({Step::combine_send, call});
      bool const sent = plan.steps.back().kind == Step::combine_send;
      plan.steps.push_back({call == 2 && sent ? Step::combine_recv : Step::drop, call});
    }
    INFO("seed " << seed);
    REQUIRE(play_by_relays(plan) == "");
  }
}

TEST_CASE("a sum that comes late, of a ticket that was dropped, is no sum of the next one") {
  // Rank 0's sums of two calls come back to the same place: of the first, which is dropped, from rank 1, then from rank 2.
  // The network is slow now and then: what it carries last may come after all that follows from the rest.
  for (std::uint64_t seed = 1; seed <= scaled(100, 4); ++seed) {
    Rng rng(mix(seed, 84));
    Setup setup{.format = Format::fp32, .ids = Ids::int32, .reduction = Reduction::sum, .world = 3, .gpu_per_node = 1};
    EpDispatchCombineConfig& c = setup.config;
    c.hidden_dim = 4;
    c.max_num_inp_token_per_rank = 1;
    c.num_experts_per_rank = 1;
    c.num_experts_per_token = 1;
    c.block_num = 3;
    c.warp_num_per_block = 1;
    setup.loopback = {.seed = rng.next(), .reorder = true, .most_delay = milliseconds(1)};
    Plan plan{.setup = setup, .calls = {}, .steps = {}};
    for (int call = 0; call < 40; ++call) {
      bool const dropped = call % 2 == 0;
      plan.calls.push_back(make_call(setup, Routing::uniform, {1, dropped ? 1 : 0, 1}, rng));
      plan.calls.back().tokens[0].ids[0] = dropped ? 1 : 2;
      plan.calls.back().zero_copy = true;
      plan.steps.push_back({Step::dispatch, call});
      plan.steps.push_back({Step::combine_send, call});
      plan.steps.push_back({dropped ? Step::drop : Step::combine_recv, call});
    }
    INFO("seed " << seed);
    REQUIRE(play_by_relays(plan) == "");
  }
}

TEST_CASE("a relay that received nothing, and gives no weights, returns those of its node") {
  Complaints wrong;
  Status const s = comm::LocalWorld(4, 2).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = RelayOp<float>::create(
        comm,
        {.hidden_dim = 4, .max_num_inp_token_per_rank = 1, .num_experts_per_rank = 1, .num_experts_per_token = 1});
    if (!op.ok()) return op.status();
    for (float round = 1; round <= 3; ++round) {
      Vector<float> const x(4, 1.0f), weights(1, 10 * round + static_cast<float>(comm.rank()));
      Vector<float> y(4), sums(1);
      Vector<std::int32_t> const ids(1, 3);  // of rank 0 by way of rank 2, which gets nothing itself
      std::int64_t const tokens = comm.rank() == 0 ? 1 : 0, rows = comm.rank() == 3 ? 1 : 0;
      auto got = op->dispatch({.input = {x.data(), tokens, 4}, .indices = {ids.data(), tokens, 1}}, stream);
      if (!got.ok()) return got.status();
      Status const back = op->combine(std::move(got->ticket),
                                      {.input = got->rows,
                                       .output = {y.data(), tokens, 4},
                                       .weights = {rows == 0 ? nullptr : weights.data(), rows, 1},
                                       .weights_output = {sums.data(), tokens, 1}},
                                      stream);
      stream.synchronize();
      wrong.expect(back.ok() && op->status().ok(), back.message() + op->status().message());
      wrong.expect(comm.rank() != 0 || (sums[0] == 10 * round + 3 && y == x), std::to_string(sums[0]));
    }
    return {};
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("more warps than a rank has parts of rows, and more windows than one") {
  // 64 nodes make 128 columns: a window of 512 tokens.
  Rng rng(85);
  Setup setup{.format = Format::fp32, .ids = Ids::int32, .reduction = Reduction::sum, .world = 64, .gpu_per_node = 1};
  EpDispatchCombineConfig& c = setup.config;
  c.hidden_dim = 4;
  c.max_num_inp_token_per_rank = 517;
  c.num_experts_per_rank = 1;
  c.num_experts_per_token = 2;
  c.block_num = 1;
  c.timeout_ms = 600000;  // 530 threads of one rank take turns on few cores
  Plan plan{.setup = setup, .calls = {}, .steps = {}};
  std::vector<int> counts(64, 0);
  counts[5] = 517;
  plan.calls.push_back(make_call(setup, Routing::uniform, counts, rng));
  plan.calls.back().launch_of_rank = 5;
  plan.calls.back().blocks = 53;
  plan.calls.back().warps = 10;
  REQUIRE(play_by_relays(plan) == "");
}

TEST_CASE("a relay that the network loses is named by all others, in time") {
  auto const nothing = [](int, int) { return false; };
  for (std::uint64_t after : {10, 60, 61, 62, 63}) {
    auto const told = rounds_until_fault<RelayOp<float>>(
        4, 1, {.vanishing_rank = 2, .vanishes_after = after, .vanish_timeout = milliseconds(100)}, 4000, nothing);
    INFO("after " << after);
    check_named(told, 2, milliseconds(5000));
  }
}

TEST_CASE("a rank that fails tells relays and those whom they serve") {
  auto const told =
      rounds_until_fault<RelayOp<float>>(4, 2, {}, 60000, [](int rank, int round) { return rank == 1 && round == 3; });
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    INFO("rank " << rank << ": " << told[rank].status.message());
    CHECK(told[rank].status.code() == (rank == 1 ? Errc::invalid_argument : Errc::peer_fault));
    CHECK(told[rank].after < milliseconds(20000));
  }
}

TEST_CASE("relays sum by nodes, and say so to whom wants another grouping") {
  Complaints wrong;
  Status const s = comm::LocalWorld(4, 2).run([&](comm::Communicator& comm) -> Status {
    for (int group : {1, 2, 4}) {
      EpDispatchCombineConfig const config{.hidden_dim = 4,
                                           .max_num_inp_token_per_rank = 1,
                                           .num_experts_per_rank = 1,
                                           .num_experts_per_token = 1,
                                           .reduce_gpu_per_node = group};
      auto const op = RelayOp<float>::create(comm, config);
      if (group == 2)
        wrong.expect(op.ok(), op.message());
      else
        wrong.refused(op.status(), Errc::invalid_config, "reduce_gpu_per_node", group, 2);
    }
    return {};
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

}  // namespace mori_ep::test
