// SPDX-License-Identifier: MIT
// Nodes on GPUs, joined by fabric::Loopback: its arenas lie in pinned memory, which kernels and the threads that copy
// for the network both reach. The host's tests of schedule/inter_node*_test.cpp have the whole list.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/guarded.hpp"
#include "support/nodes.hpp"

namespace mori_ep::test {

using std::chrono::milliseconds;

namespace {

constexpr std::pair<int, int> kShapes[] = {{2, 4}, {4, 4}, {3, 3}, {5, 1}};  // nodes, ranks of each

Plan plan_of(std::uint64_t seed, int nodes, int gpu_per_node, int missing) {
  Rng rng(mix(seed, 92));
  Plan plan = uneven_plan(kOperators[seed % 8], nodes, gpu_per_node, missing, rng);
  if (!rng.one_in(4)) plan.setup.loopback = rough(rng);
  return plan;
}

}  // namespace

TEST_CASE("nodes of GPUs: rows and sums of the contract, over a rough network") {
  auto const seed = env_number("MORI_EP_TEST_SEED", 20260930);
  std::printf("nodes: MORI_EP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::uint64_t round = 0;
  for (auto const [nodes, gpu_per_node] : kShapes)
    for (int i = 0; i < 6; ++i) {
      Plan const plan = plan_of(mix(seed, ++round), nodes, gpu_per_node, gpu_per_node > 1 ? i % 2 : 0);
      INFO(nodes << " nodes of " << gpu_per_node << ", seed " << seed << " round " << round);
      REQUIRE(play_between_nodes(plan) == "");
      REQUIRE(play_by_relays(plan) == "");
      if (plan.setup.format == Format::bf16 && plan.setup.reduction == Reduction::weighted)
        REQUIRE(play_by_rounding_relays(plan) == "");
    }
}

TEST_CASE("nodes of GPUs whose arenas lie on the device: kernels carry what crosses") {
  auto const seed = env_number("MORI_EP_TEST_SEED", 20261201);
  for (std::uint64_t round = 0; round < 12; ++round) {
    auto const [nodes, gpu_per_node] = kShapes[round % 4];
    require_carried(mix(seed, round), nodes, gpu_per_node);
  }
}

TEST_CASE("GPUs of a node, between nodes, and with relays give the same bits") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    auto const [nodes, gpu_per_node] = kShapes[seed % 2];
    INFO("seed " << seed);
    require_same_bits(plan_of(seed, nodes, gpu_per_node, 0));
  }
}

TEST_CASE("a rank that the network loses is named by all, on GPUs, too") {
  auto const told = rounds_until_fault<NetworkOp<float>>(
      4, 1, {.vanishing_rank = 2, .vanishes_after = 60, .vanish_timeout = milliseconds(100)}, 8000,
      [](int, int) { return false; });
  check_named(told, 2, milliseconds(9000));
}

TEST_CASE("memory that only the device reaches is refused where threads of the host copy") {
  EpDispatchCombineConfig const config{
      .hidden_dim = 4, .max_num_inp_token_per_rank = 1, .num_experts_per_rank = 1, .num_experts_per_token = 1};
  auto const needed = NetworkOp<float>::footprint(config, 2, 1);
  REQUIRE(needed.ok());
  for (comm::Place const place : {comm::Place::device, comm::Place::board}) {
    std::vector<GuardedArena<Machine>> memory;
    for (int r = 0; r < 2; ++r) memory.emplace_back(needed->bytes, r == 1 ? place : comm::Place::board);
    Complaints wrong;
    Status const s = comm::LocalWorld(2, 1).run([&](comm::Communicator& comm) -> Status {
      auto const& mine = memory[static_cast<std::size_t>(comm.rank())];
      auto op = NetworkOp<float>::create(comm, config, {mine.data(), mine.bytes()});
      bool const refused = place == comm::Place::device;
      wrong.expect(op.ok() != refused, op.message());
      if (refused)
        wrong.expect(op.status().code() == Errc::invalid_argument && op.status().error().rank == 1 &&
                         op.message().find("a device's arena") != std::string::npos,
                     op.message());
      return comm.barrier();
    });
    REQUIRE(s.message() == "ok");
    REQUIRE(wrong.text() == "");
  }
}

}  // namespace mori_ep::test
