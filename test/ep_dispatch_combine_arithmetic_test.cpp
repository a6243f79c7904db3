// SPDX-License-Identifier: MIT
// The one arithmetic: the order of sums by node groups, weighted sums, returned weights, dispatch and combine as
// adjoint maps (E12).
#include <atomic>
#include <vector>

#include "support/catch.hpp"
#include "support/operators.hpp"

namespace mori_ep::test {

TEST_CASE("sums are grouped by node, bit for bit") {
  // K > W: every token comes back from many ranks, and fp32 rows show every reordering.
  for (OperatorKind const op : kOperators)
    for (int group : {0, 1, 2, 3, 4, 5, 8, 100}) {
      Setup setup{.format = op.format, .ids = op.ids, .reduction = op.reduction, .world = 8};
      setup.config.hidden_dim = 24;
      setup.config.num_experts_per_rank = 2;
      setup.config.num_experts_per_token = 12;
      setup.config.max_num_inp_token_per_rank = 6;
      setup.config.reduce_gpu_per_node = group;
      Plan plan = make_plan(setup, Routing::any, 2, static_cast<std::uint64_t>(group));
      for (Call& call : plan.calls) call.return_weights = true;
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("the communicator's node grouping is the default, the config's comes before it") {
  for (auto [nodes_of, group] : {std::pair{2, 0}, {3, 0}, {3, 6}, {6, 2}}) {
    Setup setup{.world = 6, .gpu_per_node = nodes_of};
    setup.config.hidden_dim = 32;
    setup.config.num_experts_per_token = 9;
    setup.config.reduce_gpu_per_node = group;
    REQUIRE(play(make_plan(setup, Routing::any, 2, 31)) == "");
  }
}

TEST_CASE("groupings do differ in bits, so that the tests above can tell") {
  oracle::GroupedSum plain, grouped;
  float const terms[] = {1.0f, 0x1p-24f, 0x1p-24f, 0x1p-24f};
  for (int i = 0; i < 4; ++i) plain.term(0, terms[i]), grouped.term(i / 2, terms[i]);
  REQUIRE(plain.value() != grouped.value());
}

TEST_CASE("combine is the adjoint of dispatch") {
  // <D x, y> = <x, C y> over all ranks, in small integers, which fp32 sums exactly in any order.
  constexpr int kWorld = 4, kHidden = 16, kTopk = 3, kTokens = 12, kExpertsPerRank = 2;
  std::vector<double> dispatched(kWorld, 0), combined(kWorld, 0);
  Status const s = comm::LocalWorld(kWorld).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Op<float>::create(comm, {.hidden_dim = kHidden,
                                       .max_num_inp_token_per_rank = kTokens,
                                       .num_experts_per_rank = kExpertsPerRank,
                                       .num_experts_per_token = kTopk});
    if (!op.ok()) return op.status();
    Rng rng(static_cast<std::uint64_t>(comm.rank()));
    Vector<float> x(kTokens * kHidden), out(x.size());
    for (float& v : x) v = static_cast<float>(rng.in(-9, 9));
    Vector<std::int32_t> ids(kTokens * kTopk);
    for (auto& id : ids) id = rng.in(-1, kWorld * kExpertsPerRank - 1);
    auto got = op->dispatch({.input = {x.data(), kTokens, kHidden}, .indices = {ids.data(), kTokens, kTopk}}, stream);
    if (!got.ok()) return got.status();
    auto const me = static_cast<std::size_t>(comm.rank());
    auto const y = op->get_registered_combine_input_buffer(got->ticket);
    Vector<float> rows(static_cast<std::size_t>(op->capacity() * kHidden)), results(rows.size());
    Vector<std::int32_t> count(1);
    stream.copy(rows.data(), got->rows.data, rows.size() * sizeof(float));
    stream.copy(count.data(), got->recv_count, sizeof(std::int32_t));
    stream.submit([&] {
      for (std::size_t i = 0; i < static_cast<std::size_t>(count[0] * kHidden); ++i) {
        results[i] = static_cast<float>(rng.in(-9, 9));
        dispatched[me] += static_cast<double>(rows[i]) * static_cast<double>(results[i]);
      }
    });
    stream.copy(y.data, results.data(), results.size() * sizeof(float));
    if (Status c = op->combine(std::move(got->ticket), {.output = {out.data(), kTokens, kHidden}}, stream); !c.ok())
      return c;
    stream.synchronize();
    for (std::size_t i = 0; i < x.size(); ++i) combined[me] += static_cast<double>(x[i]) * static_cast<double>(out[i]);
    return op->status();
  });
  REQUIRE(s.message() == "ok");
  double left = 0, right = 0;
  for (int r = 0; r < kWorld; ++r)
    left += dispatched[static_cast<std::size_t>(r)], right += combined[static_cast<std::size_t>(r)];
  REQUIRE(left == right);
  REQUIRE(left != 0);
}

TEST_CASE("weights that are zero, negative, huge or sum to one") {
  struct Kind {
    const char* name;
    float (*weight)(int k, int topk);
  };
  for (Kind const kind : {Kind{"sum to one", [](int, int topk) { return 1.0f / static_cast<float>(topk); }},
                          Kind{"zero", [](int, int) { return 0.0f; }},
                          Kind{"negative", [](int k, int) { return -0.3f - static_cast<float>(k); }},
                          Kind{"huge", [](int k, int) { return k % 2 == 0 ? 0x1.8p100f : -0x1.2p99f; }},
                          Kind{"tiny", [](int k, int) { return static_cast<float>(k + 1) * 0x1p-140f; }}}) {
    for (Format const format : {Format::bf16, Format::fp32}) {
      Setup setup{.format = format, .reduction = Reduction::weighted, .world = 3};
      setup.config.hidden_dim = 16;
      setup.config.num_experts_per_token = 5;
      Plan plan = make_plan(setup, Routing::any, 1, 32);
      for (auto& tokens : plan.calls[0].tokens)
        for (std::size_t i = 0; i < tokens.weights.size(); ++i)
          tokens.weights[i] = kind.weight(static_cast<int>(i % 5), 5);
      INFO(kind.name);
      REQUIRE(play(plan) == "");
    }
  }
}

}  // namespace mori_ep::test
