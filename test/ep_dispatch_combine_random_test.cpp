// SPDX-License-Identifier: MIT
// Random configurations and programs. MORI_EP_TEST_SEED and MORI_EP_TEST_CASES choose which (and MORI_EP_TEST_WORLD
// fixes the number of ranks); a failing case prints the seed that plays it alone.
#include <algorithm>
#include <cstdio>

#include "support/catch.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {
namespace {

//! Steps for calls [0, n) that the configured buffer sets allow, in any order they allow.
std::vector<Step> random_program(int n, int sets, Rng& rng) {
  enum State { sent, received, combining };
  struct Ticket {
    int call;
    State state;
  };
  std::vector<Ticket> open;
  std::vector<Step> steps;
  for (int next = 0; next < n || !open.empty();) {
    // The set whose turn it is must be free: that of the call `sets` ago.
    bool const may_dispatch = next < n && std::none_of(open.begin(), open.end(),
                                                       [&](const Ticket& t) { return t.call % sets == next % sets; });
    if (may_dispatch && (open.empty() || rng.one_in(2))) {
      bool const whole = rng.one_in(2);
      steps.push_back({whole ? Step::dispatch : Step::send, next});
      open.push_back({next++, whole ? received : sent});
      continue;
    }
    if (open.empty()) continue;
    auto const at = static_cast<std::size_t>(rng.in(0, static_cast<int>(open.size()) - 1));
    Ticket& t = open[at];
    bool closed = false;
    if (rng.one_in(12)) {
      steps.push_back({Step::drop, t.call});
      closed = true;
    } else if (t.state == sent) {
      steps.push_back({Step::recv, t.call});
      t.state = received;
    } else if (t.state == received && rng.one_in(2)) {
      steps.push_back({Step::combine_send, t.call});
      t.state = combining;
    } else {
      steps.push_back({t.state == combining ? Step::combine_recv : Step::combine, t.call});
      closed = true;
    }
    if (closed) open.erase(open.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return steps;
}

Plan random_plan(std::uint64_t seed) {
  Rng rng(seed);
  OperatorKind const op = rng.of(kOperators);
  Setup s{.format = op.format, .ids = op.ids, .reduction = op.reduction};
  int const worlds[] = {1, 2, 2, 3, 3, 4, 5, 6, 8, 8, 12};
  s.world = rng.of(worlds);
  if (auto const fixed = env_number("MORI_EP_TEST_WORLD", 0); fixed != 0) s.world = static_cast<int>(fixed);
  s.gpu_per_node = rng.one_in(3) ? rng.in(1, s.world) : 0;
  s.own_memory = rng.one_in(2);
  s.jitter_us = rng.one_in(3) ? rng.in(1, 200) : 0;
  EpDispatchCombineConfig& c = s.config;
  c.hidden_dim = static_cast<int>(16 / oracle::bytes_of(s.format)) * (rng.one_in(6) ? rng.in(1, 300) : rng.in(1, 24));
  c.max_num_inp_token_per_rank = rng.one_in(5) ? rng.in(1, 80) : rng.in(1, 16);
  c.num_experts_per_rank = rng.one_in(4) ? rng.in(1, 64) : rng.in(1, 5);
  c.num_experts_per_token = rng.one_in(5) ? rng.in(1, 32) : rng.in(1, 8);
  if (rng.one_in(2)) c.num_experts = s.experts();
  if (rng.one_in(3)) c.scale_dim = rng.in(1, 60), c.scale_type_size = rng.in(1, 4);
  int const all = s.world * c.max_num_inp_token_per_rank;
  if (rng.one_in(4)) c.max_total_recv_tokens = rng.in(1, all);
  c.num_buffer_sets = rng.in(1, 2);
  s.streams = rng.in(1, c.num_buffer_sets);
  if (rng.one_in(3)) c.reduce_gpu_per_node = rng.in(1, s.world + 1);
  if (rng.one_in(2)) c.block_num = rng.in(1, 6);
  if (rng.one_in(3)) c.warp_num_per_block = rng.in(1, 3);
  if (rng.one_in(3)) c.first_epoch = static_cast<std::uint32_t>(0u - static_cast<unsigned>(rng.in(1, 4)));

  Plan plan{.setup = s, .calls = {}, .steps = {}};
  int const calls = rng.in(1, 6);
  for (int i = 0; i < calls; ++i) {
    std::vector<int> counts;
    for (int r = 0; r < s.world; ++r)
      counts.push_back(rng.one_in(5)   ? 0
                       : rng.one_in(3) ? c.max_num_inp_token_per_rank
                                       : rng.in(0, c.max_num_inp_token_per_rank));
    Call call = make_call(s, rng.of(kRoutings), counts, rng);
    call.weights = s.reduction == Reduction::weighted || !rng.one_in(4);
    call.zero_copy = rng.one_in(2);
    call.return_weights = rng.one_in(3);
    call.pad = rng.one_in(2) ? rng.in(0, 5) : 0;
    call.extra_rows = rng.one_in(4) ? rng.in(0, 3) : 0;
    if (rng.one_in(4)) call.blocks = rng.in(1, 5);
    if (rng.one_in(4)) call.warps = rng.in(1, 3);
    call.mixed_launch = rng.one_in(6);
    if (rng.one_in(6)) {
      call.delay_us.assign(static_cast<std::size_t>(s.world), 0);
      call.delay_us[static_cast<std::size_t>(rng.in(0, s.world - 1))] = rng.in(100, 3000);
    }
    plan.calls.push_back(std::move(call));
  }
  plan.steps = random_program(calls, c.num_buffer_sets, rng);
  return plan;
}

}  // namespace

TEST_CASE("random configurations, calls and programs") {
  std::uint64_t const seed = env_number("MORI_EP_TEST_SEED", 20260701);
  std::uint64_t const cases = env_number("MORI_EP_TEST_CASES", static_cast<std::uint64_t>(scaled(600, 300)));
  std::printf("random configurations: MORI_EP_TEST_SEED=%llu MORI_EP_TEST_CASES=%llu\n",
              static_cast<unsigned long long>(seed), static_cast<unsigned long long>(cases));
  std::fflush(stdout);
  std::size_t rounds = 0;
  for (std::uint64_t i = 0; i < cases; ++i) {
    INFO("play it alone: MORI_EP_TEST_SEED=" << seed + i << " MORI_EP_TEST_CASES=1");
    Plan const plan = random_plan(seed + i);
    REQUIRE(play(plan) == "");
    rounds += plan.calls.size();
  }
  std::printf("%zu rounds\n", rounds);
}

}  // namespace mori_ep::test
