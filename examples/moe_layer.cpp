// SPDX-License-Identifier: MIT
// A whole MoE layer on W ranks: dispatch, SwiGLU experts, combine; every token is compared with the same layer computed
// without any dispatch.
//
//   moe_layer --routes routes.jsonl          a routing log
//   moe_layer --routing zipf --tokens 4096   the built-in generator
//   moe_layer --quant fp8-blockwise          rows come back as fp8: how much that costs, against what its bound allows
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "moe_layer/expert.hpp"
#include "moe_layer/options.hpp"
#include "moe_layer/reference.hpp"
#include "mori_ep/mori_ep.hpp"

using namespace mori_ep;
using moe_layer::ExpertModel, moe_layer::LocalExperts, moe_layer::Options, moe_layer::Reference;

namespace {

//! Peers wait while a rank's experts compute, and large experts take their time on a CPU.
constexpr std::chrono::milliseconds kPatience = std::chrono::minutes(10);

//! One line on stderr that overwrites itself; silent when nobody watches.
class Progress {
 public:
  void show(const std::string& text) const {
    if (terminal_) std::fprintf(stderr, "\r\033[K%s", text.c_str());
  }
  void clear() const { show(""); }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) != 0;
};

//! The largest deviations from the reference so far.
struct Deviation {
  double absolute = 0;             //!< of one element
  double relative = 0;             //!< norm of a row's error / norm of the row
  double of_bound = 0;             //!< norm of a row's error / what rounding may explain; above 1 is wrong
  double errors2 = 0, norms2 = 0;  //!< squares of all errors, and of what they are errors of
  std::int64_t tokens = 0;

  void merge(const Deviation& other) {
    absolute = std::max(absolute, other.absolute);
    relative = std::max(relative, other.relative);
    of_bound = std::max(of_bound, other.of_bound);
    errors2 += other.errors2;
    norms2 += other.norms2;
    tokens += other.tokens;
  }
};

using Marks = std::array<exec::Host::Event, 4>;  //!< begin, and the ends of dispatch, experts and combine

//! What one rank found out.
struct RankReport {
  std::int64_t tokens = 0, rows_sent = 0, rows_received = 0;  // of the first round
  std::vector<std::int32_t> rows_per_expert;
  std::vector<Marks> marks;  // one per round
  Deviation deviation;
};

template <class Quant>
class MoeLayer {
 public:
  using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, Quant, exec::Host>;
  using T = typename Ep::Out;
  using Row = typename Quant::Combine;

  MoeLayer(const Options& options, const workload::Routes& routes)
      : options_(options),
        routes_(routes),
        model_{options.hidden, options.intermediate, options.seed},
        x_(static_cast<std::size_t>(options.tokens * options.hidden)),
        reports_(static_cast<std::size_t>(options.world)),
        config_{.hidden_dim = options.hidden,
                .max_num_inp_token_per_rank = static_cast<int>((options.tokens + options.world - 1) / options.world),
                .num_experts_per_rank = options.experts / options.world,
                .num_experts_per_token = options.topk,
                .num_experts = options.experts,
                .timeout_ms = kPatience.count()} {
    for (std::size_t i = 0; i < x_.size(); ++i) x_[i] = static_cast<T>(2 * ExpertModel::noise(options.seed, 0, i));
  }

  //! The program's exit code.
  int run() {
    auto const footprint = Ep::footprint(config_, options_.world);
    if (!footprint.ok()) return fail(footprint.status(), 2);
    std::printf("moe_layer: %d ranks, %d experts (%d per rank), top-%d, %lld tokens (%s)\n", options_.world,
                options_.experts, config_.num_experts_per_rank, options_.topk, static_cast<long long>(options_.tokens),
                options_.routes_file.empty() ? options_.routing.c_str() : options_.routes_file.c_str());
    std::printf("           hidden %d, intermediate %d, %s rows, arena %.1f MB per rank\n\n", options_.hidden,
                options_.intermediate, Quant::kName, 1e-6 * static_cast<double>(footprint->bytes));
    std::fflush(stdout);

    reference_ = moe_layer::compute_reference(model_, routes_, x_, [this](double part) {
      progress_.show("reference without dispatch: " + std::to_string(static_cast<int>(100 * part)) + " %");
    });
    Status const status =
        LocalWorld(options_.world, 0, kPatience).run([this](Communicator& comm) { return run_rank(comm); });
    progress_.clear();
    if (!status.ok()) return fail(status, 1);
    return print_report() ? 0 : 1;
  }

 private:
  //! All of one rank's life: what an engine would do on its own GPU.
  Status run_rank(Communicator& comm) {
    int const rank = comm.rank(), world = comm.world();
    Result<Ep> ep = Ep::create(comm, config_);
    if (!ep.ok()) return ep.status();
    LocalExperts experts(model_, rank * config_.num_experts_per_rank, config_.num_experts_per_rank, ep->capacity(),
                         options_.topk);
    RankReport& report = reports_[static_cast<std::size_t>(rank)];
    std::vector<T> y,
        results(quant::HasPlainCombine<Quant> ? 0 : static_cast<std::size_t>(ep->capacity() * options_.hidden));
    exec::Host::Stream stream;  // last, so that on an early return its work ends before what it works on

    for (int round = 0; round < options_.rounds; ++round) {
      // The shards move on by one rank each round, so that every round routes anew under one reference.
      auto const shard = workload::shard_of(options_.tokens, (rank + round) % world, world);
      std::int64_t const t = shard.tokens(), hidden = options_.hidden, topk = options_.topk;
      y.assign(static_cast<std::size_t>(t * hidden), static_cast<T>(std::numeric_limits<float>::quiet_NaN()));
      Marks& mark = report.marks.emplace_back();
      if (rank == 0) progress_.show("round " + std::to_string(round + 1) + " of " + std::to_string(options_.rounds));
      if (Status s = comm.barrier(); !s.ok()) return s;  // only so that the times compare

      stream.record(mark[0]);
      auto got = ep->dispatch({.input = {x_.data() + shard.begin * hidden, t, hidden},
                               .indices = {routes_.ids.data() + shard.begin * topk, t, topk},
                               .weights = {routes_.weights.data() + shard.begin * topk, t, topk}},
                              stream);
      if (!got.ok()) return got.status();
      stream.record(mark[1]);
      TensorView<T> out(results.data(), ep->capacity(), hidden);
      if constexpr (quant::HasPlainCombine<Quant>)
        out = ep->get_registered_combine_input_buffer(got->ticket);  // combine then copies nothing
      stream.submit([&experts, rows = got->rows, ids = got->indices, weights = got->weights, n = got->recv_count, out] {
        experts.run(rows, ids, weights, *n, out);
      });
      stream.record(mark[2]);
      if (round == 0) note_traffic(report, shard, *got, stream);
      TensorView<const T> const in(results.empty() ? nullptr : results.data(), results.empty() ? 0 : ep->capacity(),
                                   hidden);
      if (Status s = ep->combine(std::move(got->ticket), {.input = in, .output = {y.data(), t, hidden}}, stream);
          !s.ok())
        return s;
      stream.record(mark[3]);

      stream.synchronize();  // the only host wait: the results are looked at now
      if (Status s = ep->status(); !s.ok()) return s;
      report.deviation.merge(compare(y, shard));
    }
    return {};
  }

  //! For the table. Counts of what arrived are read on the stream, as an expert kernel would.
  void note_traffic(RankReport& report, workload::Shard shard, const typename Ep::Dispatched& got,
                    exec::Host::Stream& stream) const {
    report.tokens = shard.tokens();
    std::vector<int> seen(static_cast<std::size_t>(options_.world), -1);
    for (std::int64_t t = shard.begin; t < shard.end; ++t)
      for (int k = 0; k < options_.topk; ++k) {
        std::int32_t const id = routes_.ids[static_cast<std::size_t>(t * options_.topk + k)];
        if (id < 0) continue;
        int& last = seen[static_cast<std::size_t>(id / config_.num_experts_per_rank)];
        if (last != t) ++report.rows_sent;
        last = static_cast<int>(t);
      }
    report.rows_per_expert.resize(static_cast<std::size_t>(config_.num_experts_per_rank));
    stream.submit([&report, n = got.recv_count, per_expert = got.expert_count] {
      report.rows_received = *n;
      std::copy_n(per_expert, report.rows_per_expert.size(), report.rows_per_expert.begin());
    });
  }

  //! How much rounding can explain, as a part of Reference::size. A rank's row and the sum over the ranks are each
  //! rounded once to T; the experts' fp32 sums have hidden + intermediate terms. Coding: a block's error is at most that
  //! of its largest element for all of them, whose norm is the block's at most; a cast's that of each element.
  [[nodiscard]] double bound() const {
    double const wire = sizeof(T) == sizeof(float) ? 0x1p-24 : 0x1p-8;
    double coding = 0;
    if constexpr (CodedRowType<Row>) coding = std::sqrt(std::max(1, Row::kBlock)) * Row::error_bound(1.0);
    return coding + (2 + coding) * wire + (options_.hidden + options_.intermediate) * 0x1p-24;
  }

  [[nodiscard]] Deviation compare(const std::vector<T>& y, workload::Shard shard) const {
    Deviation deviation;
    auto const hidden = static_cast<std::size_t>(options_.hidden);
    for (std::int64_t t = 0; t < shard.tokens(); ++t) {
      auto const token = static_cast<std::size_t>(shard.begin + t);
      double error2 = 0, norm2 = 0, largest = 0;
      for (std::size_t h = 0; h < hidden; ++h) {
        double const want = reference_.y[token * hidden + h];
        double const error = static_cast<float>(y[static_cast<std::size_t>(t) * hidden + h]) - want;
        error2 += error * error;
        norm2 += want * want;
        largest = std::max(largest, std::abs(error));
      }
      // A NaN, or anything but zero where nothing was routed, must not slip through a comparison.
      // What a cast takes for zero: in each element of each rank's row.
      double lost = 0;
      if constexpr (CodedRowType<Row>)
        if (!Row::kScaled) lost = options_.topk * std::sqrt(static_cast<double>(hidden)) * Row::error_bound(0.0);
      double const allowed = bound() * reference_.size[token] + lost, error = std::sqrt(error2);
      auto const part = [&](double of) { return error == 0 ? 0 : error / of < HUGE_VAL ? error / of : HUGE_VAL; };
      deviation.merge(
          {std::isfinite(error) ? largest : HUGE_VAL, part(std::sqrt(norm2)), part(allowed), error2, norm2, 1});
    }
    return deviation;
  }

  //! True for PASS.
  [[nodiscard]] bool print_report() const {
    double const row_mb = 1e-6 * options_.hidden * static_cast<double>(sizeof(T));
    std::printf("rank   tokens  rows sent  rows recv   MB sent   MB recv   rows per expert min / mean / max\n");
    auto const line = [&](const std::string& name, const RankReport& r) {
      auto const [low, high] = std::minmax_element(r.rows_per_expert.begin(), r.rows_per_expert.end());
      double sum = 0;
      for (std::int32_t const rows : r.rows_per_expert) sum += rows;
      std::printf("%4s %8lld %10lld %10lld %9.2f %9.2f %17d / %.1f / %d\n", name.c_str(),
                  static_cast<long long>(r.tokens), static_cast<long long>(r.rows_sent),
                  static_cast<long long>(r.rows_received), row_mb * static_cast<double>(r.rows_sent),
                  row_mb * static_cast<double>(r.rows_received), *low,
                  sum / static_cast<double>(r.rows_per_expert.size()), *high);
    };
    RankReport all;
    for (std::size_t rank = 0; rank < reports_.size(); ++rank) {
      const RankReport& r = reports_[rank];
      line(std::to_string(rank), r);
      all.tokens += r.tokens;
      all.rows_sent += r.rows_sent;
      all.rows_received += r.rows_received;
      all.rows_per_expert.insert(all.rows_per_expert.end(), r.rows_per_expert.begin(), r.rows_per_expert.end());
      all.deviation.merge(r.deviation);
    }
    line("all", all);

    auto const us = phase_times();
    std::printf("\ntime, median of %d round%s\n", options_.rounds, options_.rounds == 1 ? "" : "s");
    std::printf("  dispatch %9.0f us  until the first rank has all its rows\n", us[0]);
    std::printf("  experts  %9.0f us  until the last rank has computed (%d ranks on %u cores)\n", us[1], options_.world,
                std::thread::hardware_concurrency());
    std::printf("  combine  %9.0f us  until the last rank has all its sums\n", us[2]);
    std::printf("largest error, every token of every round\n");
    std::printf("  absolute %.2e, relative to the row's norm %.2e\n", all.deviation.absolute, all.deviation.relative);
    std::printf("  norm of all errors / norm of all rows %.2e\n",
                std::sqrt(all.deviation.errors2 / all.deviation.norms2));
    std::printf("  %.2f of the bound: |error| <= %.2e * sum over k of weight_k |expert_k(x)|\n", all.deviation.of_bound,
                bound());
    bool const pass = all.deviation.of_bound <= 1 && all.deviation.tokens == options_.tokens * options_.rounds &&
                      all.rows_sent == all.rows_received;
    std::printf("%s: %lld tokens x %d round%s\n", pass ? "PASS" : "FAIL", static_cast<long long>(options_.tokens),
                options_.rounds, options_.rounds == 1 ? "" : "s");
    return pass;
  }

  //! Where ranks share cores, the experts of one hold up the dispatch of another: so dispatch ends with the first rank
  //! that has rows from all others, and the other phases with the last rank.
  [[nodiscard]] std::array<double, 3> phase_times() const {
    std::array<std::vector<double>, 3> times;
    for (std::size_t round = 0; round < static_cast<std::size_t>(options_.rounds); ++round) {
      std::array<double, 4> first, last;
      first.fill(HUGE_VAL);
      last.fill(-HUGE_VAL);
      for (const RankReport& r : reports_)
        for (std::size_t i = 0; i < last.size(); ++i) {
          double const at = exec::Host::Event::elapsed_us(reports_[0].marks[round][0], r.marks[round][i]);
          first[i] = std::min(first[i], at);
          last[i] = std::max(last[i], at);
        }
      times[0].push_back(first[1] - first[0]);
      times[1].push_back(last[2] - first[1]);
      times[2].push_back(last[3] - last[2]);
    }
    std::array<double, 3> median{};
    for (std::size_t i = 0; i < times.size(); ++i) {
      auto const middle = times[i].begin() + static_cast<std::ptrdiff_t>(times[i].size() / 2);
      std::nth_element(times[i].begin(), middle, times[i].end());
      median[i] = *middle;
    }
    return median;
  }

  static int fail(const Status& status, int exit_code) {
    std::fprintf(stderr, "%s\n", status.message().c_str());
    return exit_code;
  }

  const Options& options_;
  const workload::Routes& routes_;
  ExpertModel model_;
  std::vector<T> x_;
  Reference reference_;
  std::vector<RankReport> reports_;
  EpDispatchCombineConfig config_;
  Progress progress_;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  workload::Routes routes;
  if (int const code = moe_layer::read_command_line(argc, argv, options, routes); code >= 0) return code;
  if (options.quant == "fp8-cast") return MoeLayer<quant::Fp8DirectCast<>>(options, routes).run();
  if (options.quant == "fp8-blockwise") return MoeLayer<quant::Fp8Blockwise<128>>(options, routes).run();
  if (options.quant == "fp4-blockwise") return MoeLayer<quant::Fp4Blockwise<32>>(options, routes).run();
  return options.dtype == "fp32" ? MoeLayer<quant::None<float>>(options, routes).run()
                                 : MoeLayer<quant::None<bf16>>(options, routes).run();
}
