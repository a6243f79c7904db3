// SPDX-License-Identifier: MIT
// Wrong use: each ends in a Status that names field, value and limit, before anything moves (E13, E21).
#include <cstdint>
#include <vector>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/harness.hpp"

namespace mori_ep::test {
namespace {

using FloatOp = Op<float>;
using WeightedOp = Op<float, reduce::WeightedSum>;

constexpr EpDispatchCombineConfig kConfig{.hidden_dim = 16,
                                          .max_num_inp_token_per_rank = 8,
                                          .num_experts_per_rank = 2,
                                          .num_experts_per_token = 2,
                                          .num_buffer_sets = 2,
                                          .timeout_ms = 60000};
constexpr EpDispatchCombineConfig with_scales() {
  EpDispatchCombineConfig c = kConfig;
  c.scale_dim = 4, c.scale_type_size = 1;
  return c;
}

//! A limit that the machine sets: exec::Host has 256 blocks and 1024 warps, a GPU what it keeps resident.
constexpr std::int64_t kMachineLimit = -7;

//! Complaints::refused, with the machine's limit where a case has kMachineLimit.
void refused(Complaints& wrong, const Status& got, Errc code, const char* field, std::int64_t value,
             std::int64_t limit) {
  if (limit == kMachineLimit && std::is_same_v<Machine, exec::Host>) {
    limit = std::string(field) == "block_num" ? 256 : 1024;
  } else if (limit == kMachineLimit) {
    limit = got.error().limit;
    wrong.expect(limit >= 1 && (value < 0 || value > limit), "the limit of " + got.message());
  }
  wrong.refused(got, code, field, value, limit);
}

//! Memory for one rank's operands, larger than needed, 256-byte aligned.
struct Memory {
  Guarded x{64 * 64 * 4}, ids{64 * 64 * 8}, weights{64 * 64 * 4}, scales{64 * 64}, y{64 * 64 * 4};
  Memory() {
    std::memset(x.data(), 0, x.bytes());
    std::memset(ids.data(), 0, ids.bytes());
    std::memset(weights.data(), 0, weights.bytes());
  }
  template <class T>
  static T* at(const Guarded& memory) {
    return reinterpret_cast<T*>(memory.data());
  }
  template <class Operator = FloatOp>
  [[nodiscard]] typename Operator::DispatchInputs inputs(int tokens = 4) const {
    return {.input = {at<float>(x), tokens, 16}, .indices = {at<std::int32_t>(ids), tokens, 2}};
  }
};

//! Runs `body(op, stream, memory, wrong)` on every rank of a world of two, then proves that the operator still works.
template <class Operator = FloatOp, class Body>
void on_two_ranks(const EpDispatchCombineConfig& config, Body&& body) {
  Complaints wrong;
  Plan plan;
  plan.setup.config = config;
  plan.setup.reduction = std::is_same_v<Operator, WeightedOp> ? Reduction::weighted : Reduction::sum;
  plan = make_plan(plan.setup, Routing::any, 2, 71);
  Player<Operator> player(plan);
  Status const s = comm::LocalWorld(2).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Operator::create(comm, config);
    if (!op.ok()) return op.status();
    Memory memory;
    body(*op, stream, memory, wrong);
    stream.synchronize();
    wrong.expect(memory.y.untouched(), "something was written to the output");
    if (Status p = player.perform(*op, comm.rank(), &stream); !p.ok()) return p;
    stream.synchronize();
    return op->status();
  });
  REQUIRE(wrong.text() == "");
  REQUIRE(s.message() == "ok");
  REQUIRE(player.verify() == "");
}

}  // namespace

TEST_CASE("dispatch refuses operands that do not fit the configuration") {
  on_two_ranks(kConfig, [](FloatOp& op, Stream& stream, Memory& m, Complaints& wrong) {
    using In = FloatOp::DispatchInputs;
    constexpr Errc kBad = Errc::invalid_argument;
    struct Case {
      void (*change)(In&, Memory&);
      const char* field;
      std::int64_t value, limit;
    };
    for (const Case& c : {
             Case{[](In&in, Memory&) { in.input.rows = in.indices.rows = 9; }, "input rows", 9, 8},
             Case{[](In&in, Memory&) { in.input.rows = in.indices.rows = INT64_MAX; }, "input rows", INT64_MAX, 8},
             Case{[](In&in, Memory&) { in.input.rows = in.indices.rows = -1; }, "input rows", -1, 8},
             Case{[](In&in, Memory&) { in.input.cols = 15; }, "input columns", 15, 16},
             Case{[](In&in, Memory&) { in.input.cols = in.input.ld = 32; }, "input columns", 32, 16},
             Case{[](In&in, Memory&) { in.input.data = nullptr; }, "input row bytes", 0, 16},
             Case{[](In&in, Memory&) { ++in.input.data; }, "input row bytes", 4, 16},
             Case{[](In&in, Memory&) { in.input.ld = 18; }, "input row bytes", 72, 16},
             Case{[](In&in, Memory&) { in.input.ld = 12; }, "input row bytes", 48, 64},
             Case{[](In&in, Memory&) { in.indices.rows = 3; }, "indices rows", 3, 4},
             Case{[](In&in, Memory&) { in.indices.cols = 3; }, "indices columns", 3, 2},
             Case{[](In&in, Memory&) { in.indices.ld = 1; }, "indices row bytes", 4, 8},
             Case{[](In&in, Memory&) { in.indices = {}; }, "indices rows", 0, 4},
             Case{[](In&in, Memory&) { in.indices.data = nullptr; }, "indices row bytes", 0, 4},
             Case{[](In&in, Memory&) {
                    in.indices.data =
                        reinterpret_cast<const std::int32_t*>(reinterpret_cast<std::uintptr_t>(in.indices.data) + 2);
                  },
                  "indices row bytes", 2, 4},
             Case{[](In&in, Memory&mem) {
                    in.weights = {Memory::at<float>(mem.weights), 5, 2};
                  },
                  "weights rows", 5, 4},
             Case{[](In&in, Memory&mem) {
                    in.weights = {Memory::at<float>(mem.weights), 4, 1};
                  },
                  "weights columns", 1, 2},
             Case{[](In&in, Memory&mem) {
                    in.weights = {Memory::at<float>(mem.weights), 4, 2, 1};
                  },
                  "weights row bytes", 4, 8},
             Case{[](In&in, Memory&mem) {
                    in.scales = {mem.scales.data(), 4, 4};
                  },
                  "scales columns", 4, 0},
             Case{[](In&in, Memory&) { in.launch.block_num = 1025; }, "block_num", 1025, kMachineLimit},
             Case{[](In&in, Memory&) { in.launch.block_num = -1; }, "block_num", -1, kMachineLimit},
             Case{[](In&in, Memory&) {
                    in.launch = {600, 2};
                  },
                  "block_num", 600, kMachineLimit},
             Case{[](In&in, Memory&) { in.launch.warp_per_block = 2000; }, "warp_per_block", 2000, kMachineLimit},
         }) {
      In in = m.inputs();
      c.change(in, m);
      refused(wrong, op.dispatch(in, stream).status(), kBad, c.field, c.value, c.limit);
      refused(wrong, op.dispatch_send(in, stream).status(), kBad, c.field, c.value, c.limit);
    }
  });
}

TEST_CASE("scales must be given when configured, with their shape") {
  on_two_ranks(with_scales(), [](FloatOp& op, Stream& stream, Memory& m, Complaints& wrong) {
    auto in = m.inputs();
    wrong.refused(op.dispatch(in, stream).status(), Errc::invalid_argument, "scales rows", 0, 4);
    in.scales = {m.scales.data(), 4, 3};
    wrong.refused(op.dispatch(in, stream).status(), Errc::invalid_argument, "scales columns", 3, 4);
    in.scales = {m.scales.data(), 4, 4, 3};
    wrong.refused(op.dispatch(in, stream).status(), Errc::invalid_argument, "scales row bytes", 3, 4);
  });
}

TEST_CASE("WeightedSum must be given weights") {
  on_two_ranks<WeightedOp>(kConfig, [](WeightedOp& op, Stream& stream, Memory& m, Complaints& wrong) {
    wrong.refused(op.dispatch(m.inputs<WeightedOp>(), stream).status(), Errc::invalid_argument, "weights rows", 0, 4);
  });
}

TEST_CASE("combine refuses operands that do not fit, and the ticket stays usable") {
  on_two_ranks(kConfig, [](FloatOp& op, Stream& stream, Memory& m, Complaints& wrong) {
    auto got = op.dispatch(m.inputs(), stream);
    if (!got.ok()) return wrong.add(got.message());
    using In = FloatOp::CombineInputs;
    struct Case {
      void (*change)(In&, Memory&);
      const char* field;
      std::int64_t value, limit;
    };
    for (const Case& c : {
             Case{[](In&in, Memory&) { in.output.rows = 3; }, "output rows", 3, 4},
             Case{[](In&in, Memory&) { in.output = {}; }, "output rows", 0, 4},
             Case{[](In&in, Memory&) { in.output.cols = 8; }, "output columns", 8, 16},
             Case{[](In&in, Memory&) { in.output.data = nullptr; }, "output row bytes", 0, 16},
             Case{[](In&in, Memory&) { in.output.data += 2; }, "output row bytes", 8, 16},
             Case{[](In&in, Memory&) { in.output.ld = 17; }, "output row bytes", 68, 16},
             Case{[](In&in, Memory&mem) {
                    in.input = {Memory::at<float>(mem.x), 8, 12};
                  },
                  "combine input columns", 12, 16},
             Case{[](In&in, Memory&mem) {
                    in.input = {Memory::at<float>(mem.x) + 1, 8, 16};
                  },
                  "combine input row bytes", 4, 16},
             Case{[](In&in, Memory&mem) {
                    in.input = {Memory::at<float>(mem.x), 8, 16, 17};
                  },
                  "combine input row bytes", 68, 16},
             Case{[](In&in, Memory&mem) {
                    in.input = {Memory::at<float>(mem.x), 8, 16, 8};
                  },
                  "combine input row bytes", 32, 64},
             Case{[](In&in, Memory&mem) {
                    in.weights = {Memory::at<float>(mem.weights), 8, 3};
                  },
                  "combine weights columns", 3, 2},
             Case{[](In&in, Memory&mem) {
                    in.weights = {Memory::at<float>(mem.weights), 8, 2, 1};
                  },
                  "combine weights row bytes", 4, 8},
             Case{[](In&in, Memory&mem) {
                    in.weights_output = {Memory::at<float>(mem.weights), 3, 2};
                  },
                  "weights_output rows", 3, 4},
             Case{[](In&in, Memory&mem) {
                    in.weights_output = {Memory::at<float>(mem.weights), 4, 4};
                  },
                  "weights_output columns", 4, 2},
             Case{[](In&in, Memory&) {
                    in.launch = {1 << 20, 1};
                  },
                  "block_num", 1 << 20, kMachineLimit},
             Case{[](In&in, Memory&) {
                    in.launch = {1, -3};
                  },
                  "warp_per_block", -3, kMachineLimit},
         }) {
      In in{.output = {Memory::at<float>(m.y), 4, 16}};
      c.change(in, m);
      refused(wrong, op.combine(std::move(got->ticket), in, stream), Errc::invalid_argument, c.field, c.value, c.limit);
      refused(wrong, op.combine_send(got->ticket, in, stream), Errc::invalid_argument, c.field, c.value, c.limit);
    }
    Guarded y(4 * 16 * sizeof(float));
    Status const s = op.combine(std::move(got->ticket), {.output = {Memory::at<float>(y), 4, 16}}, stream);
    wrong.expect(s.ok(), s.message());
    stream.synchronize();
    wrong.expect(y.intact(), "canary");
  });
}

TEST_CASE("tickets of another operator, used, moved from or not ready are refused") {
  Complaints wrong;
  Status const s = comm::LocalWorld(2).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto a = FloatOp::create(comm, kConfig), b = FloatOp::create(comm, kConfig);
    if (!a.ok() || !b.ok()) return a.status();
    Memory m;
    FloatOp::CombineInputs const out{.output = {Memory::at<float>(m.y), 4, 16}};
    auto const refuse = [&](const Status& got, const char* hint) {
      wrong.expect(got.code() == Errc::wrong_ticket && std::string(got.error().field) == "ticket" &&
                       got.message().find(hint) != std::string::npos,
                   std::string("expected '") + hint + "', got: " + got.message());
    };
    auto got = a->dispatch(m.inputs(), stream);
    if (!got.ok()) return got.status();
    refuse(b->combine(std::move(got->ticket), out, stream), "another operator");
    refuse(b->combine_send(got->ticket, out, stream), "another operator");
    refuse(b->dispatch_recv(got->ticket, stream), "another operator");
    refuse(b->keep(got->ticket, stream).status(), "another operator");
    refuse(b->recv_totals(got->ticket, stream).status(), "another operator");
    refuse(b->check(got->ticket, stream), "another operator");
    refuse(a->dispatch_recv(got->ticket, stream), "dispatch_send");                // received already
    refuse(a->combine_recv(std::move(got->ticket), out, stream), "combine_send");  // not sent

    FloatOp::Ticket moved = std::move(got->ticket);
    refuse(a->combine(std::move(got->ticket), out, stream), "moved from");  // NOLINT: that is the point
    FloatOp::Ticket never;
    refuse(a->combine(std::move(never), out, stream), "moved from");
    stream.synchronize();
    wrong.expect(m.y.untouched(), "a refused combine wrote");
    if (Status c = a->combine(std::move(moved), out, stream); !c.ok()) return c;
    refuse(a->combine(std::move(moved), out, stream), "combined");  // NOLINT
    refuse(a->keep(moved, stream).status(), "combined");

    auto half = a->dispatch_send(m.inputs(), stream);
    if (!half.ok()) return half.status();
    refuse(a->combine(std::move(half->ticket), out, stream), "dispatch_recv");
    refuse(a->combine_send(half->ticket, out, stream), "dispatch_recv");
    if (Status r = a->dispatch_recv(half->ticket, stream); !r.ok()) return r;
    refuse(a->dispatch_recv(half->ticket, stream), "once");
    if (Status c = a->combine_send(half->ticket, out, stream); !c.ok()) return c;
    refuse(a->combine_send(half->ticket, out, stream), "once");
    refuse(a->combine(std::move(half->ticket), out, stream), "once");
    if (Status c = a->combine_recv(std::move(half->ticket), out, stream); !c.ok()) return c;
    stream.synchronize();
    return a->status();
  });
  REQUIRE(wrong.text() == "");
  REQUIRE(s.message() == "ok");
}

TEST_CASE("a kept routing fits its operator and its number of tokens only") {
  Complaints wrong;
  Status const s = comm::LocalWorld(2).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto a = FloatOp::create(comm, kConfig), b = FloatOp::create(comm, kConfig);
    auto w = WeightedOp::create(comm, kConfig);
    if (!a.ok() || !b.ok() || !w.ok()) return a.status();
    Memory m;
    auto got = a->dispatch(m.inputs(), stream);
    if (!got.ok()) return got.status();
    auto kept = a->keep(got->ticket, stream);
    if (!kept.ok()) return kept.status();
    wrong.expect(kept->tokens() == 4, "tokens");
    auto in = m.inputs();
    in.indices = {};
    in.routing = &*kept;
    wrong.refused(b->dispatch(in, stream).status(), Errc::wrong_ticket, "kept routing tokens", 4);
    in.input.rows = 3;
    wrong.refused(a->dispatch(in, stream).status(), Errc::invalid_argument, "input rows", 3, 4);
    in.input.rows = 5;
    wrong.refused(a->dispatch(in, stream).status(), Errc::invalid_argument, "input rows", 5, 4);
    in = m.inputs();
    in.routing = &*kept;
    wrong.refused(a->dispatch(in, stream).status(), Errc::invalid_argument, "indices rows", 4, 0);
    FloatOp::KeptRouting const empty;
    in.indices = {};
    in.routing = &empty;
    wrong.expect(a->dispatch(in, stream).error().code == Errc::wrong_ticket, "an empty kept routing");
    stream.synchronize();
    return a->status();
  });
  REQUIRE(wrong.text() == "");
  REQUIRE(s.message() == "ok");
}

TEST_CASE("a configuration that differs on one rank in any field is the same error on every rank") {
  struct Case {
    const char* field;
    void (*change)(EpDispatchCombineConfig&);
    std::int64_t value, limit;
    Errc code = Errc::config_mismatch;
  };
  Case const cases[] = {
      {"hidden_dim", [](EpDispatchCombineConfig& c) { c.hidden_dim = 32; }, 32, 16},
      {"max_num_inp_token_per_rank", [](EpDispatchCombineConfig& c) { c.max_num_inp_token_per_rank = 9; }, 9, 8},
      {"num_experts_per_rank", [](EpDispatchCombineConfig& c) { c.num_experts_per_rank = 3; }, 3, 2},
      {"num_experts_per_token", [](EpDispatchCombineConfig& c) { c.num_experts_per_token = 1; }, 1, 2},
      {"num_experts", [](EpDispatchCombineConfig& c) { c.num_experts = 6; }, 6, 0},
      {"scale_dim", [](EpDispatchCombineConfig& c) { c.scale_dim = 2, c.scale_type_size = 1; }, 2, 0},
      {"scale_type_size", [](EpDispatchCombineConfig& c) { c.scale_type_size = 1; }, 1, 0},
      {"max_total_recv_tokens", [](EpDispatchCombineConfig& c) { c.max_total_recv_tokens = 7; }, 7, 0},
      {"num_buffer_sets", [](EpDispatchCombineConfig& c) { c.num_buffer_sets = 1; }, 1, 2},
      {"reduce_gpu_per_node", [](EpDispatchCombineConfig& c) { c.reduce_gpu_per_node = 1; }, 1, 0},
      {"first_epoch", [](EpDispatchCombineConfig& c) { c.first_epoch = 5; }, 5, 0},
      // And what is wrong by itself:
      {"hidden_dim", [](EpDispatchCombineConfig& c) { c.hidden_dim = 18; }, 18, 4, Errc::invalid_config},
      {"num_experts", [](EpDispatchCombineConfig& c) { c.num_experts = 7; }, 7, 6, Errc::invalid_config},
      {"num_experts_per_token", [](EpDispatchCombineConfig& c) { c.num_experts_per_token = 0; }, 0, 32,
       Errc::invalid_config},
      {"num_experts_per_token", [](EpDispatchCombineConfig& c) { c.num_experts_per_token = 33; }, 33, 32,
       Errc::invalid_config},
      {"block_num", [](EpDispatchCombineConfig& c) { c.block_num = 1025; }, 1025, kMachineLimit, Errc::invalid_config},
      {"block_num", [](EpDispatchCombineConfig& c) { c.block_num = 300, c.warp_num_per_block = 4; }, 300, kMachineLimit,
       Errc::invalid_config},
      {"warp_num_per_block", [](EpDispatchCombineConfig& c) { c.warp_num_per_block = 4000; }, 4000, kMachineLimit,
       Errc::invalid_config},
      {"timeout_ms", [](EpDispatchCombineConfig& c) { c.timeout_ms = -1; }, -1, 1, Errc::invalid_config},
  };
  for (const Case& c : cases)
    for (int odd : {1, 2}) {
      Complaints wrong;
      (void)comm::LocalWorld(3).run([&](comm::Communicator& comm) {
        EpDispatchCombineConfig config = kConfig;
        if (comm.rank() == odd) c.change(config);
        auto const op = FloatOp::create(comm, config);
        refused(wrong, op.status(), c.code, c.field, c.value, c.limit);
        wrong.expect(op.error().rank == odd && op.error().phase == Phase::create, "the odd rank is named");
      });
      REQUIRE(wrong.text() == "");
    }
}

TEST_CASE("ranks of different operator types find out when they join") {
  Complaints wrong;
  (void)comm::LocalWorld(2).run([&](comm::Communicator& comm) {
    auto const expect = [&](const Status& s) {
      wrong.expect(s.code() == Errc::protocol_mismatch && s.error().rank == 1, s.message());
    };
    comm.rank() == 0 ? expect(FloatOp::create(comm, kConfig).status())
                     : expect(WeightedOp::create(comm, kConfig).status());
    comm.rank() == 0 ? expect(Op<bf16>::create(comm, kConfig).status())
                     : expect(Op<fp16>::create(comm, kConfig).status());
    comm.rank() == 0 ? expect(FloatOp::create(comm, kConfig).status())
                     : expect(Op<float, reduce::Sum, std::int64_t>::create(comm, kConfig).status());
  });
  REQUIRE(wrong.text() == "");
}

TEST_CASE("a rank that does not join is named") {
  Complaints wrong;
  (void)comm::LocalWorld(3, 0, std::chrono::milliseconds(200)).run([&](comm::Communicator& comm) {
    if (comm.rank() == 1) return;
    auto const op = FloatOp::create(comm, kConfig);
    wrong.expect(op.error().code == Errc::missing_rank && op.error().peer == 1, op.message());
  });
  REQUIRE(wrong.text() == "");
}

}  // namespace mori_ep::test
