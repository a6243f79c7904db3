// SPDX-License-Identifier: MIT
// Rows that are coded on the way, or codes already: bytes, scales, sums and error bounds, by every schedule.
#include <cstdint>
#include <cstdio>

#include "support/catch.hpp"
#include "support/coded.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {

namespace {

template <class Operator>
void require_rounds(bool networked) {
  auto const seed = env_number("MORI_EP_TEST_SEED", 20261201);
  auto const rounds = static_cast<std::uint64_t>(scaled(60, 20));
  std::printf("coded rows: MORI_EP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  for (std::uint64_t i = 0; i < rounds; ++i) {
    INFO("round " << i);
    REQUIRE(play_coded<Operator>(random_round(networked, seed, i)) == "");
  }
}

}  // namespace

TEST_CASE("elements cast to fp8") { require_rounds<CastOp>(false); }
TEST_CASE("fp8 by blocks to the experts, fp4 by blocks back") { require_rounds<BothWaysOp>(false); }
TEST_CASE("fp4 of the caller's with scales of the caller's; e5m2 with powers of two back, weighted") {
  require_rounds<CarriedOp>(false);
}
TEST_CASE("fp8 by blocks to the experts, elements back") { require_rounds<CodedDispatchOp>(false); }
TEST_CASE("fp8 of the caller's to the experts, elements back") { require_rounds<CarriedDispatchOp>(false); }
TEST_CASE("coded rows between nodes") { require_rounds<CodedInterNodeOp>(true); }
TEST_CASE("coded rows by relays, which code their sums") { require_rounds<CodedRelayOp>(true); }
TEST_CASE("coded rows by relays, whose sums are exact") { require_rounds<CodedExactRelayOp>(true); }
TEST_CASE("the caller's codes by relays") { require_rounds<CarriedRelayOp>(true); }

TEST_CASE("what a coded operator cannot do is refused by name") {
  EpDispatchCombineConfig config{
      .hidden_dim = 48, .max_num_inp_token_per_rank = 2, .num_experts_per_rank = 1, .num_experts_per_token = 1};
  auto const refused = BothWaysOp::footprint(config, 1);
  REQUIRE(!refused.ok());
  REQUIRE((refused.error().field == std::string("hidden_dim") && refused.error().limit == 32));
  config.hidden_dim = 64;
  REQUIRE(BothWaysOp::footprint(config, 1).ok());
  config.scale_dim = 2;
  config.scale_type_size = 4;
  auto const scaled_twice = BothWaysOp::footprint(config, 1);
  REQUIRE((!scaled_twice.ok() && scaled_twice.error().field == std::string("scale_dim")));
  REQUIRE(CarriedOp::footprint(config, 1).ok());
  // Of one rank alone, too: all hear of it.
  for (int wrong = 0; wrong < 3; ++wrong) {
    Status const s = comm::LocalWorld(2).run([&](comm::Communicator& comm) -> Status {
      EpDispatchCombineConfig mine = config;
      if (wrong < 2 && comm.rank() != wrong) mine.scale_dim = mine.scale_type_size = 0;
      return BothWaysOp::create(comm, mine).status();
    });
    REQUIRE((s.code() == Errc::invalid_config && s.error().field == std::string("scale_dim")));
    REQUIRE((s.error().value == 2 && s.error().limit == 0));
  }
}

TEST_CASE("between nodes codes cross, there and back") {
  constexpr std::int64_t kTokens = 16, kHidden = 1024;
  std::vector<std::uint64_t> sent(4), returned(4);
  Status const s = comm::LocalWorld(4, 2).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = CodedRelayOp::create(comm, {.hidden_dim = kHidden,
                                          .max_num_inp_token_per_rank = kTokens,
                                          .num_experts_per_rank = 1,
                                          .num_experts_per_token = 2});
    if (!op.ok()) return op.status();
    Vector<bf16> x(kTokens * kHidden, bf16(1.5f)), y(x.size());
    Vector<std::int32_t> ids;  // both ranks of the other node
    for (std::int64_t t = 0; t < kTokens; ++t)
      for (int k = 0; k < 2; ++k) ids.push_back((1 - comm.rank() / 2) * 2 + k);
    Vector<float> const weights(ids.size(), 1.0f);
    auto got = op->dispatch({.input = {x.data(), kTokens, kHidden},
                             .indices = {ids.data(), kTokens, 2},
                             .weights = {weights.data(), kTokens, 2}},
                            stream);
    if (!got.ok()) return got.status();
    stream.synchronize();
    if (Status b = comm.barrier(); !b.ok()) return b;
    auto const bytes = [&] {
      std::uint64_t sum = 0;
      for (int peer = 0; peer < 4; ++peer) sum += op->network_traffic(peer).bytes;
      return sum;
    };
    auto const rank = static_cast<std::size_t>(comm.rank());
    sent[rank] = bytes();
    Vector<bf16> rows(2 * kTokens * kHidden, bf16(1.5f));
    Status const c =
        op->combine(std::move(got->ticket),
                    {.input = {rows.data(), 2 * kTokens, kHidden}, .output = {y.data(), kTokens, kHidden}}, stream);
    stream.synchronize();
    if (Status b = comm.barrier(); !b.ok()) return b;
    returned[rank] = bytes() - sent[rank];
    return c.ok() ? op->status() : c;
  });
  REQUIRE(s.message() == "ok");
  // Of each token one copy goes to the other node, and one sum comes back; with ids, weights, positions, counts.
  constexpr std::uint64_t kRow = CodedRow<bf16, fp8_e4m3, 128>::row_bytes(kHidden);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    INFO("rank " << rank << ": " << sent[rank] << " bytes there, " << returned[rank] << " back, rows of " << kRow);
    REQUIRE((sent[rank] >= kTokens * kRow && sent[rank] < kTokens * (kRow + 64) + 512));
    REQUIRE((returned[rank] >= kTokens * kRow && returned[rank] < kTokens * (kRow + 32)));
  }
}

TEST_CASE("a combine that codes takes rows from a buffer, as many as dispatch delivered") {
  Status const s = comm::LocalWorld(1).run([](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = CastOp::create(
        comm,
        {.hidden_dim = 16, .max_num_inp_token_per_rank = 2, .num_experts_per_rank = 1, .num_experts_per_token = 1});
    if (!op.ok()) return op.status();
    Vector<bf16> x(32), y(32);
    Vector<std::int32_t> ids(2, 0);
    auto got = op->dispatch({.input = {x.data(), 2, 16}, .indices = {ids.data(), 2, 1}}, stream);
    if (!got.ok()) return got.status();
    if (Status c = op->combine(std::move(got->ticket), {.output = {y.data(), 2, 16}}, stream); !c.ok()) return c;
    stream.synchronize();
    return op->status();
  });
  REQUIRE(s.code() == Errc::invalid_argument);
  REQUIRE(s.error().field == std::string("combine input rows"));
  REQUIRE(s.error().limit == 2);
}

}  // namespace mori_ep::test
