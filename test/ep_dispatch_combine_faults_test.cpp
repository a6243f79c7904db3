// SPDX-License-Identifier: MIT
// Ranks that do not come, and the way back: named errors within the deadline, no hang, exact rounds after reset.
#include <chrono>
#include <vector>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/harness.hpp"

namespace mori_ep::test {
namespace {

using Clock = std::chrono::steady_clock;
using Operator = Op<bf16>;
constexpr auto kDeadline = std::chrono::milliseconds(2000);

Setup faulty_setup(int world) {
  Setup setup{.format = Format::bf16, .world = world};
  setup.config.hidden_dim = 24;
  setup.config.timeout_ms = kDeadline.count();
  setup.config.num_buffer_sets = 2;
  return setup;
}

//! What each rank's body is given.
struct Rank {
  comm::Communicator& comm;
  Operator& op;
  Stream& stream;
  Complaints& wrong;
  Guarded& y;
  [[nodiscard]] Operator::DispatchInputs inputs() const {
    return {.input = {x.data(), 4, 24}, .indices = {ids.data(), 4, 2}};
  }
  [[nodiscard]] Operator::CombineInputs outputs() const {
    return {.output = {reinterpret_cast<bf16*>(y.data()), 4, 24}};
  }
  //! A wait's error: this code (or a peer's report of it) with this phase, peer and rank.
  void blames(const Status& s, Phase phase, int peer) const {
    bool const right = (s.code() == Errc::timeout || s.code() == Errc::peer_fault) && s.error().phase == phase &&
                       s.error().peer == peer && s.error().rank == comm.rank() &&
                       s.message().find("peer rank " + std::to_string(peer)) != std::string::npos &&
                       s.message().find(name(phase)) != std::string::npos;
    wrong.expect(right, "rank " + std::to_string(comm.rank()) + " expected a timeout of rank " + std::to_string(peer) +
                            " in " + name(phase) + ", got: " + s.message());
  }
  //! Every later call gives the fault at once.
  void stopped() const {
    auto const begin = Clock::now();
    wrong.expect(!op.dispatch(inputs(), stream).ok() && !op.dispatch_send(inputs(), stream).ok(), "dispatch went on");
    stream.synchronize();
    wrong.expect(Clock::now() - begin < std::chrono::milliseconds(1000), "a call after the fault waited");
  }

  Vector<bf16> x = Vector<bf16>(4 * 24, bf16(1.0f));
  Vector<std::int32_t> ids = {0, 2, 4, 1, 3, 5, 0, 5};
};

//! Runs `body` on every rank; then all ranks reset and the next rounds are exact.
template <class Body>
void fault_and_recover(const Setup& setup, Body&& body) {
  Complaints wrong;
  Plan const plan = make_plan(setup, Routing::any, 4, 81);
  Player<Operator> player(plan);
  std::vector<Guarded> outputs;
  for (int r = 0; r < setup.world; ++r) outputs.emplace_back(4 * 24 * sizeof(bf16));
  Status const s = comm::LocalWorld(setup.world).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Operator::create(comm, setup.config);
    if (!op.ok()) return op.status();
    body(Rank{comm, *op, stream, wrong, outputs[static_cast<std::size_t>(comm.rank())]});
    if (Status b = comm.barrier(); !b.ok()) return b;
    wrong.expect(!op->status().ok(), "rank " + std::to_string(comm.rank()) + " knows of no fault");
    if (Status r = op->reset(stream); !r.ok()) return r;
    wrong.expect(op->status().ok(), "still at fault after reset: " + op->status().message());
    if (Status p = player.perform(*op, comm.rank(), &stream); !p.ok()) return p;
    stream.synchronize();
    return op->status();
  });
  REQUIRE(wrong.text() == "");
  REQUIRE(s.message() == "ok");
  REQUIRE(player.verify() == "");
  for (const Guarded& y : outputs) REQUIRE(y.intact());
}

}  // namespace

TEST_CASE("a rank that never calls dispatch: the others name it within the deadline") {
  for (auto [dead, blocks] : {std::pair{0, 3}, {2, 1}}) {
    Setup setup = faulty_setup(3);
    setup.config.block_num = blocks;
    fault_and_recover(setup, [dead = dead](const Rank& r) {
      if (r.comm.rank() == dead) {
        // It comes when all is over: told at once, it does not wait a deadline of its own.
        std::this_thread::sleep_for(kDeadline + std::chrono::milliseconds(500));
        auto const begin = Clock::now();
        (void)r.op.dispatch(r.inputs(), r.stream);
        r.stream.synchronize();
        r.wrong.expect(Clock::now() - begin < std::chrono::milliseconds(1000), "the late rank waited");
        r.wrong.expect(r.op.status().code() == Errc::peer_fault, "late rank: " + r.op.status().message());
        return;
      }
      auto const begin = Clock::now();
      auto got = r.op.dispatch(r.inputs(), r.stream);
      r.wrong.expect(got.ok(), "the first call is only enqueued: " + got.message());
      if (!got.ok()) return;
      // Already enqueued behind it: must neither hang nor write.
      Status const c = r.op.combine(std::move(got->ticket), r.outputs(), r.stream);
      r.stream.synchronize();
      auto const took = Clock::now() - begin;
      r.wrong.expect(took < kDeadline + std::chrono::seconds(1), "took longer than the deadline and a second");
      r.wrong.expect(took > kDeadline || r.op.status().code() != Errc::timeout, "gave up before the deadline");
      r.blames(r.op.status(), Phase::dispatch_counts, dead);
      r.wrong.expect(read(got->recv_count) == 0, "rows of a dispatch that failed");
      r.wrong.expect(!c.ok() || r.y.untouched(), "a combine behind a failed dispatch wrote");
      r.stopped();
    });
  }
}

TEST_CASE("a rank that is dead in combine: the others name it, and the output stays as it was") {
  for (int dead : {0, 1}) {
    fault_and_recover(faulty_setup(3), [dead](const Rank& r) {
      auto got = r.op.dispatch(r.inputs(), r.stream);
      r.wrong.expect(got.ok(), got.message());
      r.stream.synchronize();
      if (r.comm.rank() == dead) {
        std::this_thread::sleep_for(kDeadline + std::chrono::milliseconds(500));
        r.wrong.expect(r.op.status().code() == Errc::peer_fault, "dead rank: " + r.op.status().message());
        return;
      }
      auto const begin = Clock::now();
      Status const s = r.op.combine(std::move(got->ticket), r.outputs(), r.stream);
      r.wrong.expect(s.ok(), s.message());
      r.stream.synchronize();
      r.wrong.expect(Clock::now() - begin < kDeadline + std::chrono::seconds(1), "took too long");
      r.blames(r.op.status(), Phase::combine_ready, dead);
      r.wrong.expect(r.y.untouched(), "a combine that failed wrote");
      r.stopped();
    });
  }
}

TEST_CASE("a rank that is dead between the halves of a dispatch") {
  // Rank 1 sends its counts and rows, but its stream never gets to the end: the others receive all the same, and its
  // absence shows in the next dispatch.
  fault_and_recover(faulty_setup(3), [](const Rank& r) {
    auto got = r.op.dispatch_send(r.inputs(), r.stream);
    r.wrong.expect(got.ok(), got.message());
    r.stream.synchronize();
    if (r.comm.rank() == 1) {
      std::this_thread::sleep_for(kDeadline + std::chrono::milliseconds(500));
      return;
    }
    Status const recv = r.op.dispatch_recv(got->ticket, r.stream);
    r.stream.synchronize();
    r.wrong.expect(recv.ok() && r.op.status().ok(), "receiving what was sent: " + r.op.status().message());
    got->ticket = {};
    auto next = r.op.dispatch(r.inputs(), r.stream);
    r.stream.synchronize();
    r.blames(r.op.status(), Phase::dispatch_counts, 1);
  });
}

TEST_CASE("a peer that was told does not wait a deadline of its own") {
  fault_and_recover(faulty_setup(3), [](const Rank& r) {
    if (r.comm.rank() == 0) {
      std::this_thread::sleep_for(kDeadline + std::chrono::milliseconds(700));
      return;
    }
    auto const begin = Clock::now();
    // Rank 2 comes late into rank 1's wait for rank 0, and leaves with it.
    if (r.comm.rank() == 2) std::this_thread::sleep_for(kDeadline * 3 / 4);
    auto got = r.op.dispatch(r.inputs(), r.stream);
    r.wrong.expect(got.ok(), got.message());
    r.stream.synchronize();
    r.wrong.expect(Clock::now() - begin < kDeadline + std::chrono::milliseconds(1000), "waited on");
    r.blames(r.op.status(), Phase::dispatch_counts, 0);
    if (r.comm.rank() == 2) {
      r.wrong.expect(r.op.status().code() == Errc::peer_fault, "rank 2: " + r.op.status().message());
      r.wrong.expect(r.op.status().error().value == 1 &&
                         r.op.status().message().find("rank 1 reports a fault of peer rank 0") != std::string::npos,
                     "who told: " + r.op.status().message());
    }
  });
}

TEST_CASE(
    "too few rows for combine: named on the rank that gave them, told to the others, nothing read out of bounds") {
  for (bool const weights : {false, true})
    for (int blocks : {1, 3}) {
      Setup setup = faulty_setup(3);
      setup.config.block_num = blocks;
      fault_and_recover(setup, [weights](const Rank& r) {
        auto got = r.op.dispatch(r.inputs(), r.stream);
        r.wrong.expect(got.ok(), got.message());
        r.stream.synchronize();
        int const rows = read(got->recv_count);
        auto in = r.outputs();
        Guarded x(static_cast<std::size_t>(rows) * 24 * sizeof(bf16)), few(static_cast<std::size_t>(rows - 1) * 48),
            w(static_cast<std::size_t>(rows - 1) * 2 * sizeof(float));
        std::memset(x.data(), 0, x.bytes());
        std::memset(few.data(), 0, few.bytes());
        in.input = {reinterpret_cast<const bf16*>(x.data()), rows, 24};
        if (r.comm.rank() == 1) {
          if (weights)
            in.weights = {reinterpret_cast<const float*>(w.data()), rows - 1, 2};
          else
            in.input = {reinterpret_cast<const bf16*>(few.data()), rows - 1, 24};
        }
        auto const begin = Clock::now();
        Status const s = r.op.combine(std::move(got->ticket), in, r.stream);
        // Who calls after rank 1's kernel has failed is told by the call itself.
        r.wrong.expect(s.ok() || s.code() == Errc::peer_fault, s.message());
        r.stream.synchronize();
        r.wrong.expect(Clock::now() - begin < std::chrono::milliseconds(1500), "waited for the deadline");
        Status const fault = r.op.status();
        if (r.comm.rank() == 1) {
          r.wrong.refused(fault, Errc::invalid_argument, weights ? "combine weights rows" : "combine input rows",
                          rows - 1, rows);
          r.wrong.expect(fault.error().phase == Phase::combine_stage, fault.message());
        } else {
          r.wrong.expect(fault.code() == Errc::peer_fault && fault.error().peer == 1, fault.message());
        }
        r.wrong.expect(r.y.untouched(), "a combine that failed wrote");
      });
    }
}

TEST_CASE("faults one after the other, each followed by a reset") {
  Setup setup = faulty_setup(2);
  setup.config.timeout_ms = 100;
  Complaints wrong;
  Status const s = comm::LocalWorld(2).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Operator::create(comm, setup.config);
    if (!op.ok()) return op.status();
    Guarded y(4 * 24 * sizeof(bf16));
    Rank const r{comm, *op, stream, wrong, y};
    for (int round = 0; round < 6; ++round) {
      int const dead = round % 2;
      auto stale = Operator::Ticket();
      if (round % 3 == 2) {
        // With a good dispatch in flight: its ticket is void after the reset. Both ranks must be through before one
        // dies.
        auto got = op->dispatch(r.inputs(), stream);
        if (!got.ok()) return got.status();
        stale = std::move(got->ticket);
        stream.synchronize();
        if (Status b = comm.barrier(); !b.ok()) return b;
      }
      if (comm.rank() != dead) {
        (void)op->dispatch(r.inputs(), stream);
        stream.synchronize();
        r.blames(op->status(), Phase::dispatch_counts, dead);
      }
      if (Status b = comm.barrier(); !b.ok()) return b;
      if (Status reset = op->reset(stream); !reset.ok()) return reset;
      if (stale.valid()) {
        auto const is_void = [&](const Status& got) {
          wrong.expect(got.code() == Errc::wrong_ticket && got.message().find("reset") != std::string::npos,
                       "a void ticket: " + got.message());
        };
        is_void(op->keep(stale, stream).status());
        is_void(op->check(stale, stream));
        is_void(op->combine(std::move(stale), r.outputs(), stream));
      }
      auto got = op->dispatch(r.inputs(), stream);
      if (!got.ok()) return got.status();
      if (Status c = op->combine(std::move(got->ticket), r.outputs(), stream); !c.ok()) return c;
      stream.synchronize();
      wrong.expect(op->status().ok(), "round " + std::to_string(round) + ": " + op->status().message());
    }
    return op->status();
  });
  REQUIRE(wrong.text() == "");
  REQUIRE(s.message() == "ok");
}

TEST_CASE("reset without a fault does nothing, not even wait for the others") {
  Complaints wrong;
  Plan const plan = make_plan(faulty_setup(2), Routing::any, 2, 82);
  Player<Operator> player(plan);
  Status const s = comm::LocalWorld(2).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Operator::create(comm, plan.setup.config);
    if (!op.ok()) return op.status();
    for (int i = 0; i < 3 && comm.rank() == 0; ++i)
      if (Status r = op->reset(stream); !r.ok()) return r;
    if (Status p = player.perform(*op, comm.rank(), &stream); !p.ok()) return p;
    if (Status r = op->reset(stream); !r.ok()) return r;
    stream.synchronize();
    return op->status();
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(player.verify() == "");
}

TEST_CASE("operators may be destroyed after a fault, and while peers are still busy") {
  Setup setup = faulty_setup(3);
  setup.config.timeout_ms = 100;
  Status const s = comm::LocalWorld(3).run([&](comm::Communicator& comm) -> Status {
    Vector<bf16> x(4 * 24, bf16(1.0f)), y(x.size());
    Vector<std::int32_t> const ids = {0, 2, 4, 1, 3, 5, 0, 5};
    for (int round = 0; round < 3; ++round) {
      Stream stream;
      auto op = Operator::create(comm, setup.config);
      if (!op.ok()) return op.status();
      if (comm.rank() == round) continue;  // destroyed at once; the others run into their deadlines
      auto got = op->dispatch({.input = {x.data(), 4, 24}, .indices = {ids.data(), 4, 2}}, stream);
      if (!got.ok() && got.error().code != Errc::peer_fault) return got.status();
      if (got.ok()) (void)op->combine(std::move(got->ticket), {.output = {y.data(), 4, 24}}, stream);
    }
    return comm.barrier();
  });
  REQUIRE(s.message() == "ok");
}

TEST_CASE("a wide block ends when a rank never comes, though its warps see that at different times") {
  // Rank 1 has given up before rank 0 comes: some warps of rank 0 hear of it while others are still in the step before.
  for (int round = 0; round < scaled(60, 20); ++round) {
    std::atomic<int> ended{0};
    std::vector<Status> results(2);
    Status const s = comm::LocalWorld(3).run([&](comm::Communicator& comm) -> Status {
      bool const first = comm.rank() == 0;
      Stream stream;
      auto op = Op<float>::create(comm, {.hidden_dim = 4,
                                         .max_num_inp_token_per_rank = 100,
                                         .num_experts_per_rank = 1,
                                         .num_experts_per_token = 1,
                                         .block_num = 1,
                                         .warp_num_per_block = first ? 16 : 1,
                                         .timeout_ms = first ? 10000 : 3});
      if (!op.ok()) return op.status();
      if (comm.rank() == 2) {
        while (ended.load() < 2) std::this_thread::sleep_for(std::chrono::microseconds(100));
        return {};
      }
      Vector<float> x(100 * 4);
      Vector<std::int32_t> ids(100, 0);
      if (first) stream.submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(6)); });
      auto got = op->dispatch({.input = {x.data(), 100, 4}, .indices = {ids.data(), 100, 1}}, stream);
      stream.synchronize();
      results[static_cast<std::size_t>(comm.rank())] = got.ok() ? op->status() : got.status();
      ++ended;
      return {};
    });
    REQUIRE(s.message() == "ok");
    for (Status const& result : results) {
      INFO(result.message());
      REQUIRE((result.code() == Errc::timeout || result.code() == Errc::peer_fault));
    }
  }
}

}  // namespace mori_ep::test
