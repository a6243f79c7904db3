// SPDX-License-Identifier: MIT
// Nodes joined by a network (E6, E10, E14, E22): the bytes that one node gives, whatever the network does; and what becomes
// of ranks that a network loses. Every plan of the other tests is played between nodes, too (ctest -R mori_ep.network).
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/coded.hpp"
#include "support/expect.hpp"
#include "support/harness.hpp"
#include "support/nodes.hpp"

namespace mori_ep::test {

using std::chrono::milliseconds;

TEST_CASE("one to five nodes of one to eight ranks: the rows and sums of the contract, over a rough network") {
  auto const seed = env_number("MORI_EP_TEST_SEED", 20260801);
  std::printf("nodes: MORI_EP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  std::uint64_t round = 0;
  for (int nodes : {1, 2, 3, 4, 5})
    for (int gpu_per_node : {1, 2, 3, 4, 8}) {
      if (nodes * gpu_per_node > (kSanitized ? 9 : 16)) continue;
      for (int missing : {0, 1}) {  // the last node may be smaller
        if (missing >= gpu_per_node) continue;
        Rng rng(mix(seed, ++round));
        Plan plan = uneven_plan(kOperators[round % 8], nodes, gpu_per_node, missing, rng);
        if (round % 4 != 0) plan.setup.loopback = rough(rng);
        INFO(nodes << " nodes of " << gpu_per_node << ", seed " << seed << " round " << round);
        REQUIRE(play_between_nodes(plan) == "");
      }
    }
}

TEST_CASE("a node that is told to reduce as nodes do gives the same bits") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    Rng rng(mix(seed, 77));
    int const gpu_per_node = rng.in(1, 3), nodes = rng.in(2, 3);
    Plan plan = uneven_plan(kOperators[seed % 8], nodes, gpu_per_node, 0, rng);
    std::vector<std::uint64_t> apart, together;
    plan.setup.loopback = rough(rng);
    REQUIRE(play_between_nodes(plan, &apart) == "");
    plan.setup.gpu_per_node = 0;
    plan.setup.config.reduce_gpu_per_node = gpu_per_node;
    REQUIRE(play_on<Machine>(plan, &together) == "");
    REQUIRE(apart == together);
  }
}

TEST_CASE(
    "a ticket that is dropped before its combine is no combine that the next dispatch waits for, from any first "
    "epoch") {
  for (std::uint32_t first_epoch : {0u, 1u, 0u - 1, 0u - 2, 0u - 3}) {
    Rng rng(mix(first_epoch, 79));
    Plan plan = uneven_plan(kOperators[first_epoch % 8], 3, 1, 0, rng);
    plan.setup.config.first_epoch = first_epoch;
    for (int call = 0; call < 3; ++call)
      plan.steps.insert(plan.steps.end(), {{Step::dispatch, call}, {call == 2 ? Step::combine : Step::drop, call}});
    INFO("first epoch " << first_epoch);
    REQUIRE(play_between_nodes(plan) == "");
  }
}

TEST_CASE("a ticket that is dropped once its combine is on its way does the next one no harm") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(mix(seed, 78));
    Plan plan = uneven_plan(kOperators[seed % 8], 3, rng.in(1, 2), 0, rng);
    plan.setup.loopback = rough(rng);
    plan.setup.loopback.most_delay = milliseconds(2);
    for (int call = 0; call < 3; ++call)
      plan.steps.insert(
          plan.steps.end(),
          {{Step::dispatch, call}, {Step::combine_send, call}, {call == 1 ? Step::combine_recv : Step::drop, call}});
    INFO("seed " << seed);
    REQUIRE(play_between_nodes(plan) == "");
  }
}

TEST_CASE("a rank that the network loses is named by all others, in time") {
  // A node of one rank: nothing that it says of the others reaches anybody.
  auto const nothing = [](int, int) { return false; };
  auto const told = rounds_until_fault<NetworkOp<float>>(
      4, 1, {.vanishing_rank = 2, .vanishes_after = 60, .vanish_timeout = milliseconds(100)}, 4000, nothing);
  check_named(told, 2, milliseconds(5000));
}

TEST_CASE("a rank that fails tells ranks of other nodes, which wait for no deadline") {
  auto const told = rounds_until_fault<NetworkOp<float>>(4, 2, {}, 60000,
                                                         [](int rank, int round) { return rank == 1 && round == 3; });
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    INFO("rank " << rank << ": " << told[rank].status.message());
    CHECK(told[rank].status.code() == (rank == 1 ? Errc::invalid_argument : Errc::peer_fault));
    CHECK(told[rank].after < milliseconds(20000));
  }
}

TEST_CASE("after a fault recover() connects the nodes anew") {
  Complaints wrong;
  Status const s = comm::LocalWorld(4, 2).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = NetworkOp<float>::create(comm, {.hidden_dim = 16,
                                              .max_num_inp_token_per_rank = 2,
                                              .num_experts_per_rank = 1,
                                              .num_experts_per_token = 1,
                                              .timeout_ms = 60000});
    if (!op.ok()) return op.status();
    Vector<float> x(2 * 16), y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(comm.rank() * 100) + static_cast<float>(i);
    Vector<std::int32_t> const ids(2, (comm.rank() + 2) % 4), wrong_count(1, 100);
    for (int round = 0; round < 6; ++round) {
      if (Status b = comm.barrier(); !b.ok()) return b;  // nobody fails while others still look at the round before
      typename NetworkOp<float>::DispatchInputs in{.input = {x.data(), 2, 16}, .indices = {ids.data(), 2, 1}};
      bool const fails = round % 3 == 1;
      if (fails && comm.rank() == 3) in.token_count = wrong_count.data();
      auto got = op->dispatch(in, stream);
      Status back = got.status();  // where the fault is known already, the call fails at once
      if (got.ok())
        back = op->combine(std::move(got->ticket), {.input = got->rows, .output = {y.data(), 2, 16}}, stream);
      stream.synchronize();
      if (fails) {
        wrong.expect(!op->status().ok(), "no fault");
        if (Status r = op->recover(stream); !r.ok()) return r;
      } else {
        wrong.expect(back.ok() && op->status().ok(), back.message() + " " + op->status().message());
        wrong.expect(y == x, "rows that came back");
      }
    }
    Status const fewer = op->recover(std::vector<int>{0, 1}, stream);
    wrong.expect(comm.rank() > 1 || fewer.message().find("members is 2, limit 4") != std::string::npos,
                 fewer.message());
    return {};
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("nodes over the RDMA device of this machine", "[device]") {
  Rng rng(env_number("MORI_EP_TEST_SEED", 20260802));
  for (int gpu_per_node : {1, 2}) {
    Plan plan = uneven_plan(kOperators[0], gpu_per_node == 1 ? 3 : 2, gpu_per_node, 0, rng);
    std::string const wrong = play_over_verbs(plan);
    if (env_number("MORI_EP_TEST_RDMA", 0) == 0 &&
        (wrong.find("libibverbs.so.1") != std::string::npos || wrong.find("RDMA devices") != std::string::npos ||
         wrong.find("infiniband/verbs.h") != std::string::npos)) {
      WARN("skipped: " << wrong);
      return;
    }
    REQUIRE(wrong == "");
    plan.setup.config.rows_per_put = rng.in(1, 30);
    REQUIRE(play_by_relays_over_verbs(plan) == "");
    REQUIRE(play_coded_over_verbs({.world = gpu_per_node == 1 ? 3 : 4,
                                   .gpu_per_node = gpu_per_node,
                                   .hidden = 32 * rng.in(1, 9),
                                   .tokens = rng.in(1, 40),
                                   .seed = rng.next()}) == "");
  }
}

}  // namespace mori_ep::test
