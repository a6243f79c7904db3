// SPDX-License-Identifier: MIT
// Receive capacity that is too small, memory that the caller provides, and how much of it is needed (E15).
#include <vector>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/harness.hpp"

namespace mori_ep::test {

TEST_CASE("rows past the capacity are dropped and counted, kept ones are exact, no canary is hit") {
  for (Routing const routing : {Routing::one_expert, Routing::one_rank, Routing::any, Routing::skewed})
    for (int capacity : {1, 5, 8, 9, 17, 31, 32})
      for (int blocks : {1, 3}) {
        OperatorKind const op = kOperators[static_cast<std::size_t>(capacity) % 8];
        Setup setup{.format = op.format, .ids = op.ids, .reduction = op.reduction, .world = 4, .own_memory = true};
        setup.config.hidden_dim = 24;
        setup.config.num_experts_per_token = 3;
        setup.config.scale_dim = 3, setup.config.scale_type_size = 2;
        setup.config.max_total_recv_tokens = capacity;
        setup.config.block_num = blocks;
        Plan plan = make_plan(setup, routing, 3, static_cast<std::uint64_t>(capacity));
        plan.calls[1].zero_copy = true;
        plan.calls[2].return_weights = true;
        REQUIRE(play(plan) == "");
      }
}

TEST_CASE("check reports an overflow with its figures, once, and the operator goes on") {
  Complaints wrong;
  Status const s = comm::LocalWorld(3).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Op<float>::create(comm, {.hidden_dim = 16,
                                       .max_num_inp_token_per_rank = 4,
                                       .num_experts_per_rank = 2,
                                       .num_experts_per_token = 1,
                                       .max_total_recv_tokens = 5});
    if (!op.ok()) return op.status();
    wrong.expect(op->capacity() == 5, "capacity");
    Vector<float> x(4 * 16, 1), y(x.size());
    for (int round = 0; round < 2; ++round) {
      // Round 0: all twelve tokens to rank 1. Round 1: each to its own rank.
      Vector<std::int32_t> const ids(4, round == 0 ? 2 : 2 * comm.rank());
      auto got = op->dispatch({.input = {x.data(), 4, 16}, .indices = {ids.data(), 4, 1}}, stream);
      if (!got.ok()) return got.status();
      Status const checked = op->check(got->ticket, stream);
      auto const totals = op->recv_totals(got->ticket, stream);
      if (round == 0 && comm.rank() == 1) {
        wrong.refused(checked, Errc::recv_overflow, "rows routed to this rank", 12, 5);
        wrong.expect(checked.error().rank == 1, "rank");
        wrong.expect(totals->recv_count == 5 && totals->total == 12 && totals->dropped == 7, "totals of rank 1");
        wrong.expect(read(got->expert_count) == 5 && read(got->expert_count + 1) == 0, "experts of rank 1");
      } else {
        wrong.expect(checked.ok() && totals->dropped == 0, "check of other ranks: " + checked.message());
        wrong.expect(totals->total == (round == 0 ? 0 : 4), "totals of other ranks");
      }
      if (Status c = op->combine(std::move(got->ticket), {.output = {y.data(), 4, 16}}, stream); !c.ok()) return c;
    }
    stream.synchronize();
    return op->status();
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("footprint is what an operator needs: exactly that is enough, one byte less is not") {
  EpDispatchCombineConfig const config{.hidden_dim = 24,
                                       .max_num_inp_token_per_rank = 5,
                                       .num_experts_per_rank = 3,
                                       .num_experts_per_token = 2,
                                       .scale_dim = 3,
                                       .scale_type_size = 1,
                                       .num_buffer_sets = 2};
  constexpr int kWorld = 3;
  auto const needed = Op<bf16>::footprint(config, kWorld);
  REQUIRE(needed.ok());
  REQUIRE(needed->bytes % 256 == 0);
  // What is wrong with one rank's memory is every rank's error.
  struct Case {
    std::ptrdiff_t shift, missing;
  };
  for (Case const c : {Case{0, 0}, {0, 1}, {16, 0}, {128, 0}})
    for (int odd : {0, 2}) {
      Complaints wrong;
      std::vector<GuardedArena<Machine>> memory;
      for (int r = 0; r < kWorld; ++r) memory.emplace_back(needed->bytes + 256, comm::Place::device);
      Status const s = comm::LocalWorld(kWorld).run([&](comm::Communicator& comm) -> Status {
        bool const mine = comm.rank() == odd;
        std::byte* const base = memory[static_cast<std::size_t>(comm.rank())].data();
        std::span<std::byte> const given(base + (mine ? c.shift : 0),
                                         needed->bytes - static_cast<std::size_t>(mine ? c.missing : 0));
        auto op = Op<bf16>::create(comm, config, given);
        auto const bytes = static_cast<std::int64_t>(needed->bytes);
        if (c.shift == 0 && c.missing == 0) {
          wrong.expect(op.ok(), op.message());
        } else {
          if (c.missing != 0)
            wrong.refused(op.status(), Errc::out_of_memory, "arena bytes", bytes - c.missing, bytes);
          else
            wrong.refused(op.status(), Errc::invalid_argument, "arena alignment", 0, 256);
          wrong.expect(op.error().rank == odd, "the odd rank is named");
        }
        return comm.barrier();
      });
      REQUIRE(s.message() == "ok");
      REQUIRE(wrong.text() == "");
      // A refused operator has not written to anybody's memory.
      for (const auto& m : memory) REQUIRE((c.shift == 0 && c.missing == 0 ? m.intact() : m.untouched()));
    }
}

TEST_CASE("the arena holds hardly more than the contract needs") {
  struct Shape {
    int world, tokens, hidden, topk, experts, sets;
  };
  for (Shape const shape : {Shape{8, 128, 7168, 8, 256, 1},
                            {8, 512, 7168, 8, 256, 1},
                            {8, 4096, 7168, 8, 256, 1},
                            {8, 4096, 7168, 8, 256, 2},
                            {8, 4096, 2048, 8, 64, 1},
                            {4, 1024, 2880, 4, 128, 1},
                            {64, 128, 7168, 8, 256, 1},
                            {8, 128, 16384, 8, 256, 2}}) {
    EpDispatchCombineConfig const config{.hidden_dim = shape.hidden,
                                         .max_num_inp_token_per_rank = shape.tokens,
                                         .num_experts_per_rank = shape.experts / shape.world,
                                         .num_experts_per_token = shape.topk,
                                         .num_experts = shape.experts,
                                         .num_buffer_sets = shape.sets};
    auto const f = Op<bf16>::footprint(config, shape.world);
    REQUIRE(f.ok());
    // Counted here by hand: rows in, rows to combine, weights of both, ids, positions.
    std::size_t const rows = static_cast<std::size_t>(shape.world) * static_cast<std::size_t>(shape.tokens),
                      k = static_cast<std::size_t>(shape.topk),
                      contract = static_cast<std::size_t>(shape.sets) * rows *
                                 (2 * 2 * static_cast<std::size_t>(shape.hidden) + 2 * 4 * k + 4 * k + 4);
    INFO(shape.world << " ranks, " << shape.tokens << " tokens: " << f->bytes << " of " << contract);
    REQUIRE(f->contract_bytes == contract);
    REQUIRE(static_cast<double>(f->bytes) <= 1.1 * static_cast<double>(contract));
    REQUIRE(f->bytes >= contract);
  }
}

TEST_CASE("a footprint that overflows or a bad configuration is an error, not a number") {
  EpDispatchCombineConfig config{.hidden_dim = 1 << 30,
                                 .max_num_inp_token_per_rank = INT32_MAX / 64,
                                 .num_experts_per_rank = 1,
                                 .num_experts_per_token = 1};
  auto const f = Op<float>::footprint(config, 64);
  INFO(f.message());
  REQUIRE((f.ok() ? f->bytes > (std::size_t{1} << 60) : f.error().code == Errc::out_of_memory));
  config.num_experts_per_token = 40;
  REQUIRE(Op<float>::footprint(config, 64).error().code == Errc::invalid_config);

  // More than any machine has: refused on every rank, nobody crashes.
  config.num_experts_per_token = 1;
  Complaints wrong;
  (void)comm::LocalWorld(2).run([&](comm::Communicator& comm) {
    auto const op = Op<float>::create(comm, config);
    wrong.expect(op.error().code == Errc::out_of_memory, op.message());
  });
  REQUIRE(wrong.text() == "");
}

#if !defined(MORI_EP_GPU)
TEST_CASE("memory that a caller brings to ranks in several processes comes with its descriptor, or is refused") {
  constexpr int kWorld = 3, kOdd = 1;
  EpDispatchCombineConfig const config{
      .hidden_dim = 16, .max_num_inp_token_per_rank = 4, .num_experts_per_rank = 1, .num_experts_per_token = 1};
  auto const needed = Op<float>::footprint(config, kWorld);
  REQUIRE(needed.ok());
  enum class Brings { good, no_descriptor, other_memory, short_file };
  for (Brings const odd : {Brings::good, Brings::no_descriptor, Brings::other_memory, Brings::short_file}) {
    std::vector<ShareableArena> memory;
    for (int r = 0; r < kWorld; ++r) memory.emplace_back(needed->bytes);
    ShareableArena const other(needed->bytes), smaller(needed->bytes - 4096);
    struct Seen {
      char wrong[200] = "";
    };
    SharedArray<Seen> seen(kWorld);
    ProcessWorld processes(kWorld);
    Status const s = processes.run([&](comm::Communicator& comm) -> Status {
      comm::ArenaMemory mine = memory[static_cast<std::size_t>(comm.rank())].memory();
      if (comm.rank() == kOdd && odd == Brings::no_descriptor) mine.fd = -1;
      if (comm.rank() == kOdd && odd == Brings::other_memory) mine.fd = other.memory().fd;
      if (comm.rank() == kOdd && odd == Brings::short_file) mine.fd = smaller.memory().fd;
      auto op = Op<float>::create(comm, config, mine.bytes, mine.fd);
      std::string const told = op.message();
      auto const tells = [&](const char* part) { return told.find(part) != std::string::npos; };
      bool const right = odd == Brings::good            ? op.ok()
                         : odd == Brings::no_descriptor ? tells("rank 1") && tells("descriptor of the caller's memory")
                                                        : tells("peer rank 1") && tells("bytes of a caller's memory");
      if (!right) std::strncpy(seen[static_cast<std::size_t>(comm.rank())].wrong, told.c_str(), 199);
      return comm.barrier();
    });
    REQUIRE(s.message() == "ok");
    for (std::size_t r = 0; r < kWorld; ++r) CHECK(std::string(seen[r].wrong) == "");
    for (const auto& m : memory) CHECK(m.intact());
  }
}

TEST_CASE("two ranks that bring the same memory are refused, threads and processes alike") {
  EpDispatchCombineConfig const config{
      .hidden_dim = 16, .max_num_inp_token_per_rank = 4, .num_experts_per_rank = 1, .num_experts_per_token = 1};
  ShareableArena const shared(Op<float>::footprint(config, 2)->bytes);
  auto const create = [&](comm::Communicator& comm) {
    if (comm.rank() == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(30));  // not while the other writes there
    return Op<float>::create(comm, config, shared.memory().bytes, shared.memory().fd).status();
  };
  for (Status const& s : {comm::LocalWorld(2).run(create), ProcessWorld(2).run(create)})
    CHECK(s.message().find("bytes of a caller's memory") != std::string::npos);
}
#endif

}  // namespace mori_ep::test
