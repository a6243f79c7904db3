// SPDX-License-Identifier: MIT
// Nodes joined by a network (E6, E10, E14, E22): the bytes that one node gives, whatever the network does; and what becomes
// of ranks that a network loses. Every plan of the other tests is played between nodes, too (ctest -R mori_ep.network).
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/harness.hpp"

namespace mori_ep::test {

namespace {

using std::chrono::milliseconds;

fabric::LoopbackOptions rough(Rng& rng) {
  return {.queue_pairs = rng.in(1, 4),
          .depth = rng.in(1, 16),
          .seed = rng.next(),
          .reorder = true,
          .most_delay = std::chrono::microseconds(rng.in(0, 300)),
          .most_late = std::chrono::microseconds(rng.in(0, 100)),
          .early_one_in = rng.in(0, 3),
          .duplicate_one_in = rng.in(0, 3),
          .full_one_in = rng.one_in(2) ? 3 : 0};
}

//! A plan whose ranks have different numbers of tokens, some none.
Plan uneven_plan(OperatorKind kind, int nodes, int gpu_per_node, int missing, Rng& rng) {
  Setup setup{.format = kind.format,
              .ids = kind.ids,
              .reduction = kind.reduction,
              .world = nodes * gpu_per_node - missing,
              .gpu_per_node = gpu_per_node,
              .jitter_us = rng.one_in(3) ? 60 : 0};
  EpDispatchCombineConfig& c = setup.config;
  c.hidden_dim = 8 * rng.in(1, 12);
  c.max_num_inp_token_per_rank = rng.one_in(3) ? rng.in(200, 700) : rng.in(1, 40);
  c.num_experts_per_rank = rng.in(1, 4);
  c.num_experts_per_token = rng.in(1, std::min(9, setup.experts()));
  if (rng.one_in(2)) c.scale_dim = rng.in(1, 5), c.scale_type_size = rng.in(1, 3);
  if (rng.one_in(4)) c.max_total_recv_tokens = rng.in(1, 2 * c.max_num_inp_token_per_rank);
  c.block_num = rng.in(1, 3);
  c.warp_num_per_block = rng.in(1, 2);
  Plan plan{.setup = setup, .calls = {}, .steps = {}};
  for (int i = 0; i < 3; ++i) {
    std::vector<int> counts;
    for (int r = 0; r < setup.world; ++r) counts.push_back(rng.one_in(4) ? 0 : rng.in(0, c.max_num_inp_token_per_rank));
    plan.calls.push_back(make_call(setup, rng.of(kRoutings), counts, rng));
    plan.calls.back().zero_copy = rng.one_in(2);
    plan.calls.back().return_weights = rng.one_in(2);
  }
  return plan;
}

}  // namespace

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

namespace {

//! Rounds until a fault; what `rank` was told, and after how long from the round's beginning.
struct Told {
  Status status;
  milliseconds after{0};
};
template <class Before>
std::vector<Told> rounds_until_fault(int world, int gpu_per_node, const fabric::LoopbackOptions& network,
                                     std::int64_t timeout_ms, Before&& before) {
  using Ep = NetworkOp<float>;
  std::vector<Told> told(static_cast<std::size_t>(world));
  Status const s = comm::LocalWorld(world, gpu_per_node).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Ep::create(comm,
                         {.hidden_dim = 16,
                          .max_num_inp_token_per_rank = 4,
                          .num_experts_per_rank = 1,
                          .num_experts_per_token = 2,
                          .timeout_ms = timeout_ms},
                         {}, -1, network);
    if (!op.ok()) return op.status();
    Vector<float> const x(4 * 16, 1.0f);
    Vector<float> y(x.size());
    Vector<std::int32_t> ids(8);
    for (std::size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<std::int32_t>((static_cast<std::size_t>(comm.rank()) + i) % static_cast<std::size_t>(world));
    Told& mine = told[static_cast<std::size_t>(comm.rank())];
    Vector<std::int32_t> const wrong_count(1, 100);
    for (int round = 0; round < 1000 && mine.status.ok(); ++round) {
      auto const begin = std::chrono::steady_clock::now();
      typename Ep::DispatchInputs in{.input = {x.data(), 4, 16}, .indices = {ids.data(), 4, 2}};
      if (before(comm.rank(), round)) in.token_count = wrong_count.data();
      auto got = op->dispatch(in, stream);
      mine.status = got.status();
      if (got.ok())
        mine.status = op->combine(std::move(got->ticket), {.input = got->rows, .output = {y.data(), 4, 16}}, stream);
      stream.synchronize();
      if (mine.status.ok()) mine.status = op->status();
      mine.after = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
    }
    return {};
  });
  REQUIRE(s.message() == "ok");
  return told;
}

}  // namespace

TEST_CASE("a rank that the network loses is named by all others, in time") {
  // A node of one rank: nothing that it says of the others reaches anybody.
  auto const nothing = [](int, int) { return false; };
  auto const told = rounds_until_fault(
      4, 1, {.vanishing_rank = 2, .vanishes_after = 60, .vanish_timeout = milliseconds(100)}, 4000, nothing);
  for (int rank : {0, 1, 3}) {
    INFO("rank " << rank << ": " << told[static_cast<std::size_t>(rank)].status.message());
    CHECK(told[static_cast<std::size_t>(rank)].status.error().peer == 2);
    CHECK(told[static_cast<std::size_t>(rank)].after < milliseconds(5000));
  }
  CHECK_FALSE(told[2].status.ok());
}

TEST_CASE("a rank that fails tells ranks of other nodes, which wait for no deadline") {
  auto const told = rounds_until_fault(4, 2, {}, 60000, [](int rank, int round) { return rank == 1 && round == 3; });
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
  }
}

}  // namespace mori_ep::test
