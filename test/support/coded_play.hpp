// SPDX-License-Identifier: MIT
//! @file play_coded, for the files that compile it.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>

#include "support/coded.hpp"

namespace mori_ep::test {

//! @brief What a code of C means, and what an element becomes.
template <class C>
struct CodeOracle {
  static constexpr bool kHalf = std::is_same_v<C, fp4x2_e2m1>;
  static constexpr SmallFloat kFormat = kHalf                              ? SmallFloat{2, 1, 1, 7}
                                        : std::is_same_v<C, fp8_e4m3>      ? SmallFloat{4, 3, 7, 0x7e}
                                        : std::is_same_v<C, fp8_e4m3_fnuz> ? SmallFloat{4, 3, 8, 0x7f}
                                                                           : SmallFloat{5, 2, 15, 0x7b};
  static constexpr int kSign = kHalf ? 8 : 128;

  static int encode(float v) {
    int const code = kFormat.nearest(std::fabs(static_cast<double>(v)));
    bool const signs = std::signbit(v) && !(std::is_same_v<C, fp8_e4m3_fnuz> && code == 0);
    return signs ? code | kSign : code;
  }
  static double decode(int code) {
    double const v = kFormat.value(code & (kSign - 1));
    return (code & kSign) != 0 ? -v : v;
  }
  static void put(std::uint8_t* row, std::size_t i, int code) {
    if constexpr (kHalf)
      row[i / 2] = static_cast<std::uint8_t>(i % 2 == 0 ? (row[i / 2] & 0xf0) | code : (row[i / 2] & 0x0f) | code << 4);
    else
      row[i] = static_cast<std::uint8_t>(code);
  }
};

//! @brief A row as CodedRow's text has it: what each element comes out as, its codes and its scales' bytes.
struct CodedBytes {
  std::vector<float> values;
  std::vector<std::uint8_t> codes, scales;
  std::vector<float> largest;  // of each element's block
};

template <class R>
CodedBytes code_row(const std::vector<float>& row) {
  using O = CodeOracle<typename R::CodeType>;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  std::size_t const n = row.size(), block = R::kBlock == 0 ? 1 : static_cast<std::size_t>(R::kBlock);
  CodedBytes out;
  out.codes.resize(n / static_cast<std::size_t>(O::kHalf ? 2 : 1));
  for (std::size_t begin = 0; begin < n; begin += block) {
    std::size_t const end = std::min(n, begin + block);
    float largest = 0;
    bool finite = true;
    for (std::size_t i = begin; i < end; ++i) {
      finite &= std::isfinite(row[i]);
      largest = std::max(largest, std::fabs(row[i]));
    }
    float scale = 1, factor = 1;
    if constexpr (R::kBlock != 0) {
      auto const most = static_cast<float>(O::kFormat.value(O::kFormat.largest));
      if constexpr (std::is_same_v<typename R::ScaleType, e8m0>) {
        int exponent = -126;
        while (finite && std::ldexp(static_cast<double>(most), exponent) < largest) ++exponent;
        scale = std::ldexp(1.0f, exponent);
        factor = std::ldexp(1.0f, -exponent);
        out.scales.push_back(static_cast<std::uint8_t>(finite ? exponent + 127 : 255));
      } else {
        scale = std::max(
            oracle::multiply(std::max(largest, 0x1p-126f), static_cast<float>(1.0 / static_cast<double>(most))),
            0x1p-126f);
        factor = static_cast<float>(1.0 / static_cast<double>(scale));
        std::uint8_t bytes[4];
        float const told = finite ? scale : kNan;
        std::memcpy(bytes, &told, 4);
        out.scales.insert(out.scales.end(), bytes, bytes + 4);
      }
    }
    for (std::size_t i = begin; i < end; ++i) {
      out.largest.push_back(finite ? largest : kNan);
      int const code = finite ? O::encode(oracle::multiply(row[i], factor)) : 0;
      O::put(out.codes.data(), i, code);
      out.values.push_back(finite ? static_cast<float>(O::decode(code) * static_cast<double>(scale)) : kNan);
    }
  }
  return out;
}

//! @brief A row as form F has it on its way.
template <class F>
CodedBytes carry_row(const std::vector<float>& row) {
  if constexpr (CodedRowType<F>) {
    return code_row<F>(row);
  } else {
    CodedBytes out;
    out.values = row;
    out.largest = row;
    return out;
  }
}

template <class Operator>
struct CodedOracle;
template <class Transport, class Schedule, class Quant, class Exec, class Reduce, class Index>
struct CodedOracle<EpDispatchCombine<Transport, Schedule, Quant, Exec, Reduce, Index>> {
  using Dispatch = typename Quant::Dispatch;
  using Combine = typename Quant::Combine;
  static constexpr bool kWeighted = Reduce::kWeighted;
  static constexpr bool kRoundsSums = std::is_same_v<Schedule, schedule::InterNodeV1>;
  static constexpr bool kCodesSums = [] {  // those that come from other nodes
    if constexpr (kRoundsSums && CodedRowType<Combine>) return Combine::kScaled;
    return false;
  }();
  static constexpr bool kRoundsOwnNode = kRoundsSums && CodedRowType<Combine> && !kCodesSums;
  // To relays of Rdma every rank is a node.
  static constexpr bool kRelaysAlone =
      Transport::kName == std::string_view("rdma") && std::string_view(Schedule::kName).starts_with("InterNodeV1");
};

template <class T>
oracle::Format element_format() {
  return std::is_same_v<T, bf16>   ? oracle::Format::bf16
         : std::is_same_v<T, fp16> ? oracle::Format::fp16
                                   : oracle::Format::fp32;
}

//! @brief Elements of T from a seed: magnitudes from far below the others of their block to far above.
template <class T>
std::vector<T> random_row(std::size_t n, bool specials, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<T> row(n);
  int const magnitude = std::is_same_v<T, fp16> ? rng.in(-8, 8) : rng.in(-40, 40);
  for (T& v : row) {
    float x =
        std::ldexp(static_cast<float>(rng.in(-1000, 1000)) / 700.0f, magnitude + (rng.one_in(9) ? rng.in(-9, 4) : 0));
    if (specials && rng.one_in(40)) x = 0;
    if (specials && rng.one_in(40)) x = -0.0f;
    if (specials && rng.one_in(60)) x = 0x1.8p-130f;
    if (specials && rng.one_in(300)) x = -std::numeric_limits<float>::infinity();
    if (specials && rng.one_in(300)) x = std::numeric_limits<float>::quiet_NaN();
    v = T(x);
  }
  if (specials && rng.one_in(4)) std::fill(row.begin(), row.end(), T(0x1.4p-131f));
  if (specials && rng.one_in(4)) std::fill(row.begin(), row.end(), T(0.0f));
  return row;
}
template <class T>
std::vector<float> floats_of(const std::vector<T>& row) {
  std::vector<float> out;
  for (const T& v : row) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &v, sizeof(v));
    out.push_back(static_cast<float>(oracle::decode(element_format<T>(), bits)));
  }
  return out;
}

//! @brief One round, its inputs and what came of it.
template <class Operator>
class CodedPlayer {
 public:
  using Input = typename Operator::Input;
  using Token = typename Operator::Token;
  using Out = typename Operator::Out;
  using Index = typename Operator::IndexType;
  using O = CodedOracle<Operator>;
  static constexpr bool kCarriesCodes = Code<Input>;  // the caller's own, with a byte of scale each

  explicit CodedPlayer(const CodedRound& round) : round_(round), ranks_(static_cast<std::size_t>(round.world)) {
    for (int rank = 0; rank < round.world; ++rank) {
      Rng rng(mix(round.seed, static_cast<std::uint64_t>(rank), 3));
      Rank& r = ranks_[static_cast<std::size_t>(rank)];
      r.tokens = rng.one_in(5) ? 0 : rng.in(1, round.tokens);
      auto const t = static_cast<std::size_t>(r.tokens);
      for (std::size_t i = 0; i < t * topk(); ++i) {
        r.ids.push_back(static_cast<Index>(rng.in(-1, round.world * round.experts_per_rank - 1)));
        r.weights.push_back(static_cast<float>(rng.in(-8, 8)) / 4);
      }
      r.y.resize(t * hidden());
      for (std::size_t token = 0; token < t; ++token) {
        std::uint64_t const seed = mix(round.seed, static_cast<std::uint64_t>(rank), token);
        if constexpr (kCarriesCodes) {
          for (std::size_t i = 0; i < units(); ++i)
            r.x.push_back(Input::from_bits(static_cast<std::uint8_t>(rng.in(0, 255))));
          for (std::size_t i = 0; i < scale_bytes(); ++i) r.scales.push_back(std::byte(rng.in(0, 255)));
        } else {
          auto const row = random_row<Input>(hidden(), round.specials, seed);
          r.x.insert(r.x.end(), row.begin(), row.end());
        }
      }
    }
  }

  Status run(comm::Communicator& comm) {
    Rank& r = ranks_[static_cast<std::size_t>(comm.rank())];
    Stream stream;
    auto op = Operator::create(comm, config());
    if (!op.ok()) return op.status();
    auto const h = static_cast<std::int64_t>(hidden()), k = static_cast<std::int64_t>(topk()),
               t = std::int64_t{r.tokens};
    typename Operator::DispatchInputs in{.input = {r.x.data(), t, static_cast<std::int64_t>(units())},
                                         .indices = {r.ids.data(), t, k},
                                         .weights = {r.weights.data(), t, k}};
    if constexpr (kCarriesCodes) in.scales = {r.scales.data(), t, static_cast<std::int64_t>(scale_bytes())};
    auto got = op->dispatch(in, stream);
    if (!got.ok()) return got.status();
    auto const totals = op->recv_totals(got->ticket, stream);
    if (!totals.ok()) return totals.status();
    auto const n = static_cast<std::size_t>(totals->recv_count);
    r.rows.resize(n * got->rows.cols);
    r.row_scales.resize(n * static_cast<std::size_t>(got->scales.cols));
    r.positions.resize(n);
    stream.copy(r.rows.data(), got->rows.data, r.rows.size() * sizeof(Token));
    stream.copy(r.row_scales.data(), got->scales.data, r.row_scales.size());
    stream.copy(r.positions.data(), op->get_dispatch_src_token_pos(got->ticket).data, n * sizeof(std::int32_t));
    stream.synchronize();
    for (std::size_t row = 0; row < n; ++row) {
      auto const out = result(comm.rank(), r.positions[row]);
      r.results.insert(r.results.end(), out.begin(), out.end());
    }
    Status const combined = op->combine(
        std::move(got->ticket),
        {.input = {r.results.data(), static_cast<std::int64_t>(n), h}, .output = {r.y.data(), t, h}}, stream);
    stream.synchronize();
    return combined.ok() ? op->status() : combined;
  }

  [[nodiscard]] std::string verify() const {
    for (int rank = 0; rank < round_.world; ++rank)
      for (std::string const& wrong : {verify_rows(rank), verify_sums(rank)})
        if (!wrong.empty()) return "rank " + std::to_string(rank) + ": " + wrong;
    return {};
  }
  [[nodiscard]] int gpu_per_node() const { return round_.gpu_per_node; }

 private:
  struct Rank {
    int tokens = 0;
    Vector<Input> x;
    Vector<Index> ids;
    Vector<float> weights;
    Vector<std::byte> scales, row_scales;
    Vector<Token> rows;
    Vector<std::int32_t> positions;
    Vector<Out> results, y;
  };

  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(round_.hidden); }
  [[nodiscard]] std::size_t topk() const { return static_cast<std::size_t>(round_.topk); }
  [[nodiscard]] std::size_t units() const { return hidden() / (std::is_same_v<Input, fp4x2_e2m1> ? 2 : 1); }
  [[nodiscard]] std::size_t scale_bytes() const { return kCarriesCodes ? (hidden() + 31) / 32 : 0; }
  [[nodiscard]] EpDispatchCombineConfig config() const {
    return {.hidden_dim = round_.hidden,
            .max_num_inp_token_per_rank = round_.tokens,
            .num_experts_per_rank = round_.experts_per_rank,
            .num_experts_per_token = round_.topk,
            .scale_dim = static_cast<int>(scale_bytes()),
            .scale_type_size = kCarriesCodes ? 1 : 0,
            .block_num = round_.blocks,
            .warp_num_per_block = round_.warps};
  }
  //! What rank `rank` returns for the token at `position`.
  [[nodiscard]] std::vector<Out> result(int rank, std::int32_t position) const {
    return random_row<Out>(
        hidden(), round_.specials,
        mix(round_.seed, static_cast<std::uint64_t>(rank) + 77, static_cast<std::uint64_t>(position)));
  }
  [[nodiscard]] std::set<int> ranks_of(int source, int token) const {
    std::set<int> out;
    for (std::size_t i = 0; i < topk(); ++i) {
      auto const id = ranks_[static_cast<std::size_t>(source)].ids[static_cast<std::size_t>(token) * topk() + i];
      if (id >= 0) out.insert(static_cast<int>(id) / round_.experts_per_rank);
    }
    return out;
  }

  [[nodiscard]] std::string verify_rows(int rank) const {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    std::size_t n = 0;
    for (int source = 0; source < round_.world; ++source)
      for (int token = 0; token < ranks_[static_cast<std::size_t>(source)].tokens; ++token) {
        if (!ranks_of(source, token).contains(rank)) continue;
        std::string const where =
            "row " + std::to_string(n) + " (rank " + std::to_string(source) + " token " + std::to_string(token) + "): ";
        if (n == r.positions.size()) return where + "is missing";
        if (r.positions[n] != source * round_.tokens + token) return where + "position";
        const Rank& from = ranks_[static_cast<std::size_t>(source)];
        auto const x = from.x.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * units());
        std::size_t const row_units = r.rows.size() / r.positions.size(),
                          scales = r.row_scales.size() / r.positions.size();
        const Token* row = r.rows.data() + n * row_units;
        const std::byte* row_scales = r.row_scales.data() + n * scales;
        if constexpr (CodedRowType<typename O::Dispatch>) {
          auto const want = code_row<typename O::Dispatch>(floats_of(std::vector<Input>(x, x + round_.hidden)));
          if (scales != want.scales.size() || std::memcmp(row_scales, want.scales.data(), scales) != 0)
            return where + "scales";
          for (std::size_t i = 0; i < want.codes.size(); ++i) {
            std::size_t const element = i * (want.values.size() / want.codes.size());
            if (row[i].bits != want.codes[i] && !std::isnan(want.values[element]))
              return where + "code " + std::to_string(i) + " is " + std::to_string(row[i].bits) + ", expected " +
                     std::to_string(want.codes[i]);
          }
        } else {
          if (std::memcmp(row, &*x, units() * sizeof(Token)) != 0) return where + "payload";
          if (scales != scale_bytes() ||
              (scales != 0 &&
               std::memcmp(row_scales, from.scales.data() + static_cast<std::size_t>(token) * scales, scales) != 0))
            return where + "scales";
        }
        ++n;
      }
    return n == r.positions.size() ? "" : "more rows than " + std::to_string(n);
  }

  [[nodiscard]] std::string verify_sums(int rank) const {
    const Rank& r = ranks_[static_cast<std::size_t>(rank)];
    oracle::Format const format = element_format<Out>();
    int const per_node = O::kRelaysAlone ? 1 : round_.gpu_per_node == 0 ? round_.world : round_.gpu_per_node;
    // What of a node's sum comes to the source.
    auto const brought = [&](std::vector<float> sum, int node) {
      bool const own = node == rank / per_node;
      if (own ? O::kRoundsOwnNode : O::kRoundsSums)
        for (float& v : sum)
          v = static_cast<float>(oracle::decode(format, oracle::encode(format, static_cast<double>(v))));
      if constexpr (O::kCodesSums)
        if (!own) return code_row<typename O::Combine>(sum).values;
      return sum;
    };
    for (int token = 0; token < r.tokens; ++token) {
      std::vector<CodedBytes> rows;
      std::vector<std::vector<float>> exact;
      std::vector<int> nodes;
      std::vector<float> factors;
      for (int from : ranks_of(rank, token)) {
        exact.push_back(floats_of(result(from, rank * round_.tokens + token)));
        rows.push_back(carry_row<typename O::Combine>(exact.back()));
        nodes.push_back(from / per_node);
        float factor = 0;
        for (std::size_t k = 0; k < topk(); ++k) {
          std::size_t const i = static_cast<std::size_t>(token) * topk() + k;
          if (r.ids[i] >= 0 && static_cast<int>(r.ids[i]) / round_.experts_per_rank == from) factor += r.weights[i];
        }
        factors.push_back(O::kWeighted ? factor : 1);
      }
      std::vector<float> total(hidden());
      for (std::size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
        std::vector<float> sum(hidden());
        for (; end < rows.size() && nodes[end] == nodes[begin]; ++end)
          for (std::size_t h = 0; h < hidden(); ++h) {
            float const value =
                O::kWeighted ? oracle::multiply(rows[end].values[h], factors[end]) : rows[end].values[h];
            sum[h] = end == begin ? value : oracle::add(sum[h], value);
          }
        sum = brought(sum, nodes[begin]);
        for (std::size_t h = 0; h < hidden(); ++h) total[h] = begin == 0 ? sum[h] : oracle::add(total[h], sum[h]);
      }
      for (std::size_t h = 0; h < hidden(); ++h) {
        double sum = 0, largest = 0, weight = 0;
        for (std::size_t i = 0; i < rows.size(); ++i) {
          sum += static_cast<double>(exact[i][h]) * static_cast<double>(factors[i]);
          largest = std::max(largest, std::fabs(static_cast<double>(rows[i].largest[h])));
          weight = std::max(weight, std::fabs(static_cast<double>(factors[i])));
        }
        float const want_fp32 = total[h];
        std::uint32_t const want = oracle::encode(format, static_cast<double>(want_fp32));
        std::uint32_t bits = 0;
        std::memcpy(&bits, &r.y[static_cast<std::size_t>(token) * hidden() + h], sizeof(Out));
        double const value = oracle::decode(format, bits);
        std::string const where =
            "sum of token " + std::to_string(token) + " element " + std::to_string(h) + " is " + std::to_string(value);
        if (bits != want && !(std::isnan(value) && std::isnan(want_fp32)))
          return where + ", expected " + std::to_string(want_fp32);
        if constexpr (CodedRowType<typename O::Combine>)
          if (std::isfinite(value) && !rows.empty() && std::isfinite(largest) &&
              !(std::fabs(value - sum) <= O::Combine::error_bound(largest, static_cast<int>(rows.size()),
                                                                  O::kRoundsSums ? 2 : 1, O::kCodesSums, weight)))
            return where + ", further from " + std::to_string(sum) + " than the bound says";
      }
    }
    return {};
  }

  CodedRound round_;
  std::vector<Rank> ranks_;
};

template <class Operator>
std::string play_coded(const CodedRound& round) {
  CodedPlayer<Operator> player(round);
  Status const played =
      comm::LocalWorld(round.world, round.gpu_per_node, std::chrono::seconds(120)).run([&](comm::Communicator& comm) {
        return player.run(comm);
      });
  std::string const wrong = played.ok() ? player.verify() : played.message();
  if (wrong.empty()) return wrong;
  return wrong + "\n  world " + std::to_string(round.world) + " by " + std::to_string(round.gpu_per_node) + " hidden " +
         std::to_string(round.hidden) + " tokens " + std::to_string(round.tokens) + " experts_per_rank " +
         std::to_string(round.experts_per_rank) + " topk " + std::to_string(round.topk) + " blocks " +
         std::to_string(round.blocks) + " warps " + std::to_string(round.warps) + " seed " + std::to_string(round.seed);
}

}  // namespace mori_ep::test
