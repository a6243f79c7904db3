// SPDX-License-Identifier: MIT
#include "support/operators.hpp"

#include <algorithm>

namespace mori_ep::test {

std::string play(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  static auto const network = env_number("MORI_EP_TEST_NETWORK", 0);
  return network == 0   ? play_on<Machine>(plan, hashes)
         : network == 1 ? play_between_nodes(plan, hashes)
                        : play_by_relays(plan, hashes);
}

namespace {

//! The plan with nodes, and a network that has some faults, where it says nothing of them.
Plan networked(const Plan& plan) {
  Plan out = plan;
  Setup& s = out.setup;
  auto const world = static_cast<std::uint64_t>(s.world);
  Rng rng(mix(plan.calls.size(), world, static_cast<std::uint64_t>(s.config.hidden_dim)));
  if (s.gpu_per_node == 0) s.gpu_per_node = rng.in(1, s.world);
  if (s.loopback == fabric::LoopbackOptions{} && !rng.one_in(3))
    s.loopback = {.queue_pairs = rng.in(1, 3),
                  .depth = rng.in(1, 40),
                  .seed = rng.next(),
                  .reorder = rng.one_in(2),
                  .most_delay = std::chrono::microseconds(rng.one_in(2) ? rng.in(0, 200) : 0),
                  .most_late = std::chrono::microseconds(rng.one_in(2) ? rng.in(0, 100) : 0),
                  .early_one_in = rng.one_in(2) ? 3 : 0,
                  .duplicate_one_in = rng.one_in(2) ? 2 : 0,
                  .full_one_in = rng.one_in(2) ? 3 : 0};
  return out;
}
//! The same, for relays: they sum what their node returns, and chunks may be small.
Plan relayed(const Plan& plan) {
  Plan out = networked(plan);
  EpDispatchCombineConfig& c = out.setup.config;
  Rng rng(mix(plan.calls.size(), static_cast<std::uint64_t>(c.max_num_inp_token_per_rank), 3));
  c.reduce_gpu_per_node = 0;
  if (c.rows_per_put == 0 && rng.one_in(2)) c.rows_per_put = rng.in(1, 40);
  int fewest = c.block_num > 0 ? c.block_num : 1;  // blocks of any call
  for (const Call& call : plan.calls)
    if (call.mixed_launch || call.blocks > 0) fewest = call.mixed_launch ? 1 : std::min(fewest, call.blocks);
  if (c.rdma_block_num == 0 && fewest > 1 && rng.one_in(2)) c.rdma_block_num = rng.in(1, fewest - 1);
  return out;
}

}  // namespace

std::string play_between_nodes(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  return play_with<NetworkOp>(networked(plan), hashes);
}
std::string play_by_relays(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  return play_with<RelayOp>(relayed(plan), hashes);
}
std::string play_by_rounding_relays(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  Plan const played = relayed(plan);
  std::string const wrong = play_as<RoundingRelayOp>(played, hashes);
  return wrong.empty() ? wrong : wrong + "\n  " + describe(played);
}

}  // namespace mori_ep::test
