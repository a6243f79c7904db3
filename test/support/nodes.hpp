// SPDX-License-Identifier: MIT
//! @file Plans and rounds between nodes.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/operators.hpp"

namespace mori_ep::test {

//! @brief A network with some of every fault.
inline fabric::LoopbackOptions rough(Rng& rng) {
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

//! @brief A plan whose ranks have different numbers of tokens, some none.
inline Plan uneven_plan(OperatorKind kind, int nodes, int gpu_per_node, int missing, Rng& rng) {
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

//! @brief Plays one plan over fabric::DeviceLoopback.
inline void require_carried(std::uint64_t seed, int nodes, int gpu_per_node) {
  Rng rng(seed);
  Plan plan = uneven_plan({Format::bf16, Reduction::sum, Ids::int32}, nodes, gpu_per_node, 0, rng);
  if (rng.one_in(2)) plan.setup.loopback = {.queue_pairs = rng.in(1, 3), .depth = rng.in(1, 40)};
  INFO("seed " << seed << "\n" << describe(plan));
  REQUIRE(play_as<DeviceRelayOp>(plan, nullptr) == "");
}

//! @brief What a rank was told of a fault, and how long after its round began.
struct Told {
  Status status;
  std::chrono::milliseconds after{0};
};
//! @brief Rounds of four tokens until a fault, by rank. `before(rank, round)` is true where the rank shall fail.
template <class Ep, class Before>
std::vector<Told> rounds_until_fault(int world, int gpu_per_node, const fabric::LoopbackOptions& network,
                                     std::int64_t timeout_ms, Before&& before) {
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
      mine.after = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
    }
    return {};
  });
  REQUIRE(s.message() == "ok");
  return told;
}
//! @brief Of a world of one rank a node, all others name rank `lost`, before `within` has passed.
inline void check_named(const std::vector<Told>& told, int lost, std::chrono::milliseconds within) {
  for (int rank = 0; rank < static_cast<int>(told.size()); ++rank) {
    const Told& t = told[static_cast<std::size_t>(rank)];
    INFO("rank " << rank << ": " << t.status.message());
    CHECK_FALSE(t.status.ok());
    if (rank == lost) continue;
    CHECK(t.status.error().peer == lost);
    CHECK(t.after < within);
  }
}

//! @brief The plan's nodes without relays and with give the bits of one node that is told to reduce as they do.
inline void require_same_bits(Plan plan) {
  std::vector<std::uint64_t> apart, relayed, together;
  REQUIRE(play_between_nodes(plan, &apart) == "");
  REQUIRE(play_by_relays(plan, &relayed) == "");
  plan.setup.config.reduce_gpu_per_node = std::exchange(plan.setup.gpu_per_node, 0);
  REQUIRE(play_on<Machine>(plan, &together) == "");
  REQUIRE(apart == together);
  REQUIRE(relayed == together);
}

}  // namespace mori_ep::test
