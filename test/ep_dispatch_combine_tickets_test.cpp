// SPDX-License-Identifier: MIT
// Tickets: two in flight, split halves, dropped ones, kept routings and their replay (E9, E17).
#include <atomic>
#include <thread>

#include "support/catch.hpp"
#include "support/harness.hpp"
#include "support/operators.hpp"

namespace mori_ep::test {
namespace {

Setup two_sets() {
  Setup setup{.format = Format::bf16, .world = 4};
  setup.config.hidden_dim = 24;
  setup.config.num_experts_per_token = 3;
  setup.config.max_num_inp_token_per_rank = 7;
  setup.config.num_buffer_sets = 2;
  return setup;
}

}  // namespace

TEST_CASE("two tickets interleaved, combined in either order, whole or in halves") {
  using enum Step::Kind;
  std::vector<std::vector<Step>> const programs = {{{dispatch, 0},
                                                    {dispatch, 1},
                                                    {combine, 0},
                                                    {combine, 1},
                                                    {dispatch, 2},
                                                    {dispatch, 3},
                                                    {combine, 2},
                                                    {combine, 3}},
                                                   {{dispatch, 0},
                                                    {dispatch, 1},
                                                    {combine, 1},
                                                    {combine, 0},
                                                    {dispatch, 2},
                                                    {dispatch, 3},
                                                    {combine, 3},
                                                    {combine, 2}},
                                                   {{dispatch, 0},
                                                    {dispatch, 1},
                                                    {combine, 0},
                                                    {dispatch, 2},
                                                    {combine, 1},
                                                    {dispatch, 3},
                                                    {combine, 3},
                                                    {combine, 2}},
                                                   {{send, 0},
                                                    {send, 1},
                                                    {recv, 0},
                                                    {recv, 1},
                                                    {combine_send, 0},
                                                    {combine_send, 1},
                                                    {combine_recv, 0},
                                                    {combine_recv, 1},
                                                    {send, 2},
                                                    {recv, 2},
                                                    {combine, 2}},
                                                   {{send, 0},
                                                    {send, 1},
                                                    {recv, 1},
                                                    {combine_send, 1},
                                                    {recv, 0},
                                                    {combine_recv, 1},
                                                    {combine, 0},
                                                    {dispatch, 2},
                                                    {combine_send, 2},
                                                    {combine_recv, 2}},
                                                   {{send, 0},
                                                    {recv, 0},
                                                    {combine_send, 0},
                                                    {send, 1},
                                                    {combine_recv, 0},
                                                    {send, 2},
                                                    {recv, 1},
                                                    {combine, 1},
                                                    {recv, 2},
                                                    {combine, 2},
                                                    {dispatch, 3},
                                                    {combine, 3}}};
  for (const auto& program : programs)
    for (int streams : {1, 2})
      for (int jitter : {0, 300}) {
        Setup setup = two_sets();
        setup.streams = streams;
        setup.jitter_us = jitter;
        Plan plan = make_plan(setup, Routing::any, 4, 41);
        plan.calls[1].zero_copy = plan.calls[2].zero_copy = true;
        plan.calls[0].return_weights = plan.calls[2].return_weights = true;
        plan.steps = program;
        REQUIRE(play(plan) == "");
      }
}

TEST_CASE("tickets dropped without a combine, received or not") {
  using enum Step::Kind;
  std::vector<std::vector<Step>> const one_set = {
      {{dispatch, 0}, {drop, 0}, {dispatch, 1}, {combine, 1}},
      {{dispatch, 0}, {drop, 0}, {dispatch, 1}, {drop, 1}, {dispatch, 2}, {combine, 2}},
      {{send, 0}, {drop, 0}, {dispatch, 1}, {combine, 1}},
      {{send, 0}, {drop, 0}, {send, 1}, {drop, 1}, {send, 2}, {recv, 2}, {combine, 2}},
      {{send, 0}, {recv, 0}, {drop, 0}, {send, 1}, {recv, 1}, {combine, 1}},
      {{dispatch, 0}, {combine_send, 0}, {drop, 0}, {dispatch, 1}, {combine, 1}}};
  for (int sets : {1, 2})
    for (const auto& program : one_set) {
      Setup setup = two_sets();
      setup.config.num_buffer_sets = sets;
      setup.jitter_us = 100;
      Plan plan = make_plan(setup, Routing::any, 3, 42);
      plan.steps = program;
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("halves that were never received do not let a rank overtake those still listening") {
  // Rank 0 comes so late that the others sleep in their waits for it. Who wakes first goes on to its next call, and
  // must not overwrite the counts that the others have yet to read.
  for (int sets : {1, 2}) {
    Setup setup = two_sets();
    setup.config.num_buffer_sets = sets;
    Plan plan = make_plan(setup, Routing::any, 20, 47);
    for (int i = 0; i < 20; ++i) {
      plan.calls[static_cast<std::size_t>(i)].delay_us = {5000, 0, 0, 0};
      plan.steps.insert(plan.steps.end(), {{Step::send, i}, {i % 7 == 6 ? Step::recv : Step::drop, i}});
      if (i % 7 == 6) plan.steps.push_back({Step::combine, i});
    }
    REQUIRE(play(plan) == "");
  }
}

TEST_CASE("one ticket more than there are buffer sets is refused") {
  for (int sets : {1, 2}) {
    std::atomic<int> busy{0}, after{0};
    Status const s = comm::LocalWorld(2).run([&](comm::Communicator& comm) -> Status {
      EpDispatchCombineConfig config = two_sets().config;
      config.num_buffer_sets = sets;
      Stream stream;
      auto op = Op<float>::create(comm, config);
      if (!op.ok()) return op.status();
      Vector<float> x(24, 1);
      Vector<std::int32_t> ids = {0, 2, 1};
      Op<float>::DispatchInputs const in{.input = {x.data(), 1, 24}, .indices = {ids.data(), 1, 3}};
      std::vector<Op<float>::Dispatched> got;
      for (int i = 0; i < sets; ++i) {
        auto d = op->dispatch(in, stream);
        if (!d.ok()) return d.status();
        got.push_back(std::move(*d));
      }
      auto const refused = op->dispatch(in, stream);
      if (refused.error().code == Errc::buffer_set_busy && refused.error().value == sets) ++busy;
      if (Status c = op->combine(std::move(got[0].ticket), {.output = {x.data(), 1, 24}}, stream); !c.ok()) return c;
      auto const next = op->dispatch(in, stream);
      if (next.ok()) ++after;
      stream.synchronize();
      return op->status();
    });
    REQUIRE(s.message() == "ok");
    REQUIRE(busy.load() == 2);
    REQUIRE(after.load() == 2);
  }
}

TEST_CASE("a kept routing replays with another payload, after its ids were overwritten and after other calls") {
  for (OperatorKind const op : {kOperators[1], kOperators[4], kOperators[7]})
    for (int sets : {1, 2}) {
      Setup setup = two_sets();
      setup.format = op.format, setup.ids = op.ids, setup.reduction = op.reduction;
      setup.config.num_buffer_sets = sets;
      setup.jitter_us = 50;
      Plan plan = make_plan(setup, Routing::invalid, 6, 43);
      using enum Step::Kind;
      // Call 0 is kept. Calls 2 and 3 replay it (the backward pass, twice), 4 with weights of its own, 1 and 5 are
      // others.
      plan.steps = {{dispatch, 0}, {keep, 0},     {combine, 0}, {scribble, 0}, {dispatch, 1},
                    {combine, 1},  {dispatch, 2}, {combine, 2}, {dispatch, 3}, {combine, 3},
                    {send, 4},     {recv, 4},     {combine, 4}, {dispatch, 5}, {combine, 5}};
      for (int i : {2, 3, 4}) {
        Call& call = plan.calls[static_cast<std::size_t>(i)];
        call.replay_of = 0;
        call.weights = i == 4;
        for (std::size_t r = 0; r < call.tokens.size(); ++r) {
          call.tokens[r].ids = plan.calls[0].tokens[r].ids;
          if (i != 4) call.tokens[r].weights = plan.calls[0].tokens[r].weights;
        }
        call.return_weights = true;
      }
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("a routing may be kept between the halves, and for ranks without tokens") {
  Setup setup = two_sets();
  Rng rng(44);
  Plan plan{.setup = setup, .calls = {}, .steps = {}};
  plan.calls.push_back(make_call(setup, Routing::any, {3, 0, 7, 0}, rng));
  plan.calls.push_back(make_call(setup, Routing::any, {3, 0, 7, 0}, rng));
  plan.calls[1].replay_of = 0;
  plan.calls[1].weights = false;
  for (std::size_t r = 0; r < 4; ++r) {
    plan.calls[1].tokens[r].ids = plan.calls[0].tokens[r].ids;
    plan.calls[1].tokens[r].weights = plan.calls[0].tokens[r].weights;
  }
  plan.steps = {{Step::send, 0},    {Step::keep, 0},     {Step::recv, 0},
                {Step::combine, 0}, {Step::dispatch, 1}, {Step::combine, 1}};
  REQUIRE(play(plan) == "");
}

TEST_CASE("two operators of one world work at the same time") {
  constexpr int kWorld = 3, kRounds = 10;
  Setup a = two_sets(), b = two_sets();
  a.world = b.world = kWorld;
  a.format = b.format = Format::fp32;
  b.config.hidden_dim = 40, b.config.num_experts_per_token = 5;
  a.config.block_num = b.config.block_num = 2;  // what two operators run at the same time must be resident together
  Plan const plan_a = make_plan(a, Routing::any, kRounds, 48), plan_b = make_plan(b, Routing::any, kRounds, 49);
  Player<Op<float>> play_a(plan_a), play_b(plan_b);
  Status const s = comm::LocalWorld(kWorld).run([&](comm::Communicator& comm) -> Status {
    settle<Machine>(comm.rank(), comm.world());
    Stream stream_a, stream_b;
    auto op_a = Op<float>::create(comm, a.config), op_b = Op<float>::create(comm, b.config);
    if (!op_a.ok() || !op_b.ok()) return op_a.ok() ? op_b.status() : op_a.status();
    Status const done_a = play_a.perform(*op_a, comm.rank(), &stream_a);
    Status const done_b = play_b.perform(*op_b, comm.rank(), &stream_b);
    stream_a.synchronize();
    stream_b.synchronize();
    if (!done_a.ok() || !done_b.ok()) return done_a.ok() ? done_b : done_a;
    if (Status met = comm.barrier(); !met.ok()) return met;  // nobody frees while another launches
    return op_a->status().ok() ? op_b->status() : op_a->status();
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(play_a.verify() == "");
  REQUIRE(play_b.verify() == "");
}

// On one GPU, creating and destroying in one world may hold back launches that ranks of the other wait for.
TEST_CASE("two worlds of one process work at the same time", "[host_only]") {
  Setup a = two_sets(), b = two_sets();
  a.world = b.world = 3;
  a.format = b.format = Format::fp32;
  b.config.hidden_dim = 40, b.config.num_experts_per_token = 5;
  std::string wrong[2];
  std::thread side([&] { wrong[0] = play(make_plan(a, Routing::any, 10, 45)); });
  wrong[1] = play(make_plan(b, Routing::any, 10, 46));
  side.join();
  REQUIRE(wrong[0] == "");
  REQUIRE(wrong[1] == "");
}

}  // namespace mori_ep::test
