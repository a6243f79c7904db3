// SPDX-License-Identifier: MIT
// The standard-MoE layout against plain loops: rows by expert in source order, and the weighted way back.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/machine.hpp"

namespace {

using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, test::Machine>;
using test::Vector;

struct Shape {
  int world, tokens, hidden, topk, experts_per_rank, room;
};

std::int32_t id_of(const Shape& s, int rank, int token, int k) {
  if ((token + k) % 11 == 0) return -1;
  if (token % 5 == 1 && k > 0 && k == s.topk - 1) return id_of(s, rank, token, 0);  // one expert named twice
  return static_cast<std::int32_t>((token * 7 + k * k * 3 + rank * 5) % (s.world * s.experts_per_rank));
}
float weight_of(int token, int k) { return 0.25f * static_cast<float>((token + 2 * k) % 7); }
float payload(int rank, int token, int h) {
  return static_cast<float>(rank * 64 + token) + 0.5f * static_cast<float>(h % 3);
}
float factor(int expert) { return static_cast<float>(expert + 1); }

//! What expert `e` must hold: (rank, token) in order, one entry per token that names it.
std::vector<std::pair<int, int>> rows_of(const Shape& s, int e) {
  std::vector<std::pair<int, int>> rows;
  for (int r = 0; r < s.world; ++r)
    for (int t = 0; t < s.tokens; ++t)
      for (int k = 0; k < s.topk; ++k)
        if (id_of(s, r, t, k) == e) {
          rows.emplace_back(r, t);
          break;
        }
  return rows;
}

}  // namespace

TEST_CASE("the standard-MoE layout holds each expert's rows in source order and combines them weighted",
          "[layout/standard_moe]") {
  for (Shape const s : {Shape{1, 5, 4, 1, 3, 5}, Shape{4, 37, 64, 3, 5, 4 * 37}, Shape{3, 16, 8, 6, 2, 20}}) {
    std::vector<std::string> problems(static_cast<std::size_t>(s.world));
    LocalWorld(s.world)
        .run([&](Communicator& comm) {
          auto& problem = problems[static_cast<std::size_t>(comm.rank())];
          test::Stream stream;
          auto ep = Ep::create(comm, {.hidden_dim = s.hidden,
                                      .max_num_inp_token_per_rank = s.tokens,
                                      .num_experts_per_rank = s.experts_per_rank,
                                      .num_experts_per_token = s.topk})
                        .value();
          int const rank = comm.rank(), capacity = static_cast<int>(ep.capacity());
          auto const size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
          Vector<float> x(size(s.tokens * s.hidden)), y(x.size(), std::nanf("")), weights(size(s.tokens * s.topk));
          Vector<std::int32_t> ids(weights.size());
          for (int t = 0; t < s.tokens; ++t) {
            for (int h = 0; h < s.hidden; ++h) x[size(t * s.hidden + h)] = payload(rank, t, h);
            for (int k = 0; k < s.topk; ++k) {
              ids[size(t * s.topk + k)] = id_of(s, rank, t, k);
              weights[size(t * s.topk + k)] = weight_of(t, k);
            }
          }
          Vector<float> packed_x(size(std::int64_t{s.experts_per_rank} * s.room * s.hidden), std::nanf(""));
          Vector<std::int32_t> count(size(s.experts_per_rank)), info(size(s.experts_per_rank * s.room)),
              slots(size(capacity * s.topk));
          Vector<std::int64_t> ranges(size(s.experts_per_rank * s.world)), dropped(size(s.experts_per_rank));
          Ep::StandardMoe const packed{.packed_recv_x = {packed_x.data(), s.experts_per_rank * s.room, s.hidden},
                                       .packed_recv_count = count.data(),
                                       .packed_recv_src_info = info.data(),
                                       .packed_recv_layout_range = ranges.data(),
                                       .row_slots = slots.data(),
                                       .packed_dropped = dropped.data(),
                                       .max_rows_per_expert = s.room};
          auto got = ep.dispatch_standard_moe({.input = {x.data(), s.tokens, s.hidden},
                                               .indices = {ids.data(), s.tokens, s.topk},
                                               .weights = {weights.data(), s.tokens, s.topk},
                                               .launch = {.block_num = 3, .warp_per_block = 2}},
                                              packed, stream);
          got.status().or_throw();
          stream.synchronize();
          for (int e = 0; e < s.experts_per_rank; ++e) {
            auto const rows = rows_of(s, rank * s.experts_per_rank + e);
            int const kept = std::min(static_cast<int>(rows.size()), s.room);
            if (count[size(e)] != kept || dropped[size(e)] != static_cast<std::int64_t>(rows.size()) - kept)
              problem = "count of expert " + std::to_string(e);
            if (test::read(got->expert_count + e) != static_cast<int>(rows.size())) problem = "expert_count";
            for (int i = 0; i < kept; ++i) {
              auto const [r, t] = rows[size(i)];
              if (info[size(e * s.room + i)] != r * s.tokens + t) problem = "source position";
              for (int h = 0; h < s.hidden; ++h) {
                float& value = packed_x[size((std::int64_t{e} * s.room + i) * s.hidden + h)];
                if (value != payload(r, t, h)) problem = "row";
                value *= factor(rank * s.experts_per_rank + e);
              }
            }
            for (int r = 0, first = 0; r < s.world; ++r) {
              std::int64_t const range = ranges[size(e * s.world + r)];
              int in_range = 0;
              for (int i = 0; i < kept; ++i) in_range += rows[size(i)].first == r;
              if ((range >> 32) != first || (range & 0xffffffff) != in_range) problem = "layout range";
              first += in_range;
            }
          }
          ep.combine_standard_moe(std::move(got->ticket), packed, {.output = {y.data(), s.tokens, s.hidden}}, stream)
              .or_throw();
          stream.synchronize();
          for (int t = 0; t < s.tokens; ++t)
            for (int h = 0; h < s.hidden; ++h) {
              double expected = 0, magnitude = 0;
              for (int k = 0; k < s.topk; ++k) {
                int const e = id_of(s, rank, t, k);
                if (e < 0) continue;
                auto const rows = rows_of(s, e);
                bool kept = false;
                for (int i = 0; i < std::min(static_cast<int>(rows.size()), s.room); ++i)
                  kept |= rows[size(i)] == std::pair(rank, t);
                if (!kept) continue;
                expected += double{weight_of(t, k)} * factor(e) * payload(rank, t, h);
                magnitude += std::abs(double{weight_of(t, k)} * factor(e) * payload(rank, t, h));
              }
              if (!(std::abs(y[size(t * s.hidden + h)] - expected) <= 1e-6 * magnitude)) problem = "combined sum";
            }
          ep.status().or_throw();
        })
        .or_throw();
    for (const std::string& problem : problems) CHECK(problem.empty());
  }
}

namespace {

//! Coded rows and those of the caller's, by expert: each with the scales that its received row has.
template <class Operator>
void check_scales(int scale_dim, int scale_type_size) {
  constexpr int kTokens = 9, kHidden = 256, kTopk = 3, kExperts = 2, kRoom = 2 * kTokens;
  using Input = typename Operator::Input;
  using Token = typename Operator::Token;
  std::vector<std::string> problems(2);
  LocalWorld(2)
      .run([&](Communicator& comm) {
        auto& problem = problems[static_cast<std::size_t>(comm.rank())];
        test::Stream stream;
        auto ep = Operator::create(comm, {.hidden_dim = kHidden,
                                          .max_num_inp_token_per_rank = kTokens,
                                          .num_experts_per_rank = kExperts,
                                          .num_experts_per_token = kTopk,
                                          .scale_dim = scale_dim,
                                          .scale_type_size = scale_type_size})
                      .value();
        auto const units = static_cast<std::int64_t>(quant::units_of<Input>(kHidden));
        Vector<Input> x(static_cast<std::size_t>(kTokens * units));
        for (std::size_t i = 0; i < x.size(); ++i) {
          if constexpr (Element<Input>)
            x[i] = Input(static_cast<float>(i % 97) * static_cast<float>(i / 128 + 1));
          else
            x[i] = Input::from_bits(static_cast<std::uint8_t>(i * 7 % 120));
        }
        Vector<std::int32_t> ids(kTokens * kTopk);
        Vector<float> weights(ids.size(), 1.0f);
        for (std::size_t i = 0; i < ids.size(); ++i)
          ids[i] = static_cast<std::int32_t>(i * i + static_cast<std::size_t>(comm.rank())) % 4;
        int const given = scale_dim * scale_type_size;
        Vector<std::byte> scales(static_cast<std::size_t>(kTokens * given));
        for (std::size_t i = 0; i < scales.size(); ++i) scales[i] = static_cast<std::byte>(i * 31 + 5);
        std::int64_t const bytes = given != 0 ? given : kHidden / 128 * 4;
        Vector<Token> packed_x(static_cast<std::size_t>(kExperts * kRoom * quant::units_of<Token>(kHidden)));
        Vector<std::byte> packed_scales(static_cast<std::size_t>(kExperts * kRoom * (bytes + 4)), std::byte{0xee});
        Vector<std::int32_t> count(kExperts), info(kExperts * kRoom),
            slots(static_cast<std::size_t>(ep.capacity() * kTopk));
        Vector<std::int64_t> ranges(kExperts * 2), dropped(kExperts);
        typename Operator::StandardMoe packed{
            .packed_recv_x = {packed_x.data(), kExperts * kRoom, quant::units_of<Token>(kHidden)},
            .packed_recv_scales = {packed_scales.data(), kExperts * kRoom, bytes, bytes + 4},
            .packed_recv_count = count.data(),
            .packed_recv_src_info = info.data(),
            .packed_recv_layout_range = ranges.data(),
            .row_slots = slots.data(),
            .packed_dropped = dropped.data(),
            .max_rows_per_expert = kRoom};
        typename Operator::DispatchInputs in{.input = {x.data(), kTokens, units},
                                             .indices = {ids.data(), kTokens, kTopk},
                                             .weights = {weights.data(), kTokens, kTopk}};
        if (given != 0) in.scales = {scales.data(), kTokens, given};
        auto const wrong = [&](std::int64_t columns) {
          auto other = packed;
          other.packed_recv_scales.cols = columns;
          Status const s = ep.dispatch_standard_moe(in, other, stream).status();
          return s.code() == Errc::invalid_argument && s.error().field == std::string("packed_recv_scales columns");
        };
        if (!wrong(bytes - 1)) problem = "scales that do not fit are taken";
        auto got = ep.dispatch_standard_moe(in, packed, stream);
        got.status().or_throw();
        stream.synchronize();
        auto const positions = ep.get_dispatch_src_token_pos(got->ticket);
        std::int64_t rows = 0;
        for (int e = 0; e < kExperts; ++e)
          for (int i = 0; i < count[static_cast<std::size_t>(e)]; ++i) {
            int const slot = e * kRoom + i;
            std::int64_t row = 0;
            while (test::read(positions.data + row) != info[static_cast<std::size_t>(slot)]) ++row;
            ++rows;
            for (std::int64_t b = 0; b < bytes + 4; ++b) {
              std::byte const had = packed_scales[static_cast<std::size_t>(slot * (bytes + 4) + b)];
              std::byte const want = b < bytes ? test::read(got->scales.row(row) + b) : std::byte{0xee};
              if (had != want) problem = "scales of row " + std::to_string(slot);
            }
          }
        if (rows == 0) problem = "no rows";
        ep.status().or_throw();
      })
      .or_throw();
  for (const std::string& problem : problems) CHECK(problem.empty());
}

}  // namespace

TEST_CASE("rows by expert bring their scales", "[layout/standard_moe]") {
  check_scales<EpDispatchCombine<transport::Xgmi, schedule::IntraNode,
                                 quant::Pair<quant::Fp8Blockwise<128>, quant::None<bf16>>, test::Machine>>(0, 0);
  check_scales<Ep>(3, 1);
}

TEST_CASE("the standard-MoE calls refuse what they cannot do", "[layout/standard_moe]") {
  LocalWorld(1)
      .run([](Communicator& comm) {
        test::Stream stream;
        auto ep = Ep::create(comm, {.hidden_dim = 4,
                                    .max_num_inp_token_per_rank = 2,
                                    .num_experts_per_rank = 1,
                                    .num_experts_per_token = 1})
                      .value();
        Vector<float> x(8), packed_x(8);
        Vector<std::int32_t> ids(2), ints(16);
        Vector<std::int64_t> longs(4);
        Ep::StandardMoe packed{.packed_recv_x = {packed_x.data(), 2, 4},
                               .packed_recv_count = ints.data(),
                               .packed_recv_src_info = ints.data() + 2,
                               .packed_recv_layout_range = longs.data(),
                               .row_slots = ints.data() + 4,
                               .packed_dropped = longs.data() + 1,
                               .max_rows_per_expert = 2};
        auto no_weights =
            ep.dispatch_standard_moe({.input = {x.data(), 2, 4}, .indices = {ids.data(), 2, 1}}, packed, stream);
        CHECK(no_weights.error().code == Errc::invalid_argument);
        CHECK(std::string(no_weights.error().field) == "weights rows");
        auto got = ep.dispatch({.input = {x.data(), 2, 4}, .indices = {ids.data(), 2, 1}}, stream);
        packed.packed_recv_scales.rows = 2;
        CHECK(std::string(ep.convert_dispatch_output(got->ticket, packed, stream).error().field) ==
              "packed_recv_scales");
        packed.packed_recv_scales.rows = 0;
        packed.max_rows_per_expert = 0;
        CHECK(std::string(ep.convert_dispatch_output(got->ticket, packed, stream).error().field) ==
              "max_rows_per_expert");
        packed.max_rows_per_expert = 3;
        CHECK(std::string(ep.convert_dispatch_output(got->ticket, packed, stream).error().field) ==
              "packed_recv_x rows");
        packed.max_rows_per_expert = 2;
        packed.row_slots = nullptr;
        CHECK(std::string(ep.convert_combine_input(got->ticket, packed, stream).error().field) == "packed layout");
        stream.synchronize();
      })
      .or_throw();
}
