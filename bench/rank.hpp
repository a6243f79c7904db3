// SPDX-License-Identifier: MIT
//! @file One rank's part in measuring an operator on the host, whatever its schedule and transport.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "meeting.hpp"
#include "mori_ep/mori_ep.hpp"
#include "no_memory.hpp"
#include "quantisation.hpp"
#include "run.hpp"
#include "verify.hpp"

namespace ep_bench {

//! @brief When this rank began and ended each phase of each iteration.
struct Timings {
  explicit Timings(int iterations) : dispatch(iterations, 1), combine(iterations, 1), pair(iterations, 1) {}
  Spans dispatch, combine, pair;
};

//! @brief One rank. Members return false when the run is over: this rank has complained, or another has.
template <class Ep>
class Rank {
 public:
  using C = Coding<typename Ep::Wire>;
  using T = typename C::T;
  Rank(const Problem& problem, Meeting& meeting, Timings& timings, int rank, Ep& ep)
      : problem_(problem),
        config_(problem_.config()),
        meeting_(meeting),
        timings_(timings),
        rank_(rank),
        ep_(ep),
        x_(problem_.tokens() * hidden(), "a rank's input"),
        sent_(C::kCarries ? x_.size() : 0, "a rank's codes"),
        scales_(problem_.tokens() * C::carried_scales(hidden()), "a rank's scales"),
        rows_(C::kPlainDispatch ? 0 : problem_.received(rank).size() * hidden(), "received rows as elements"),
        y_(x_.size(), "a rank's output"),
        external_(config_.external ? problem_.received(rank).size() * hidden() : 0, "the experts' rows") {
    if constexpr (C::kCarries)
      inputs_.input = {sent_.data(), config_.tokens, config_.hidden};
    else
      inputs_.input = {x_.data(), config_.tokens, config_.hidden};
    inputs_.indices = {problem_.ids(rank), config_.tokens, config_.topk};
    inputs_.weights = {problem_.weights(rank), config_.tokens, config_.topk};
    inputs_.launch = config_.launch;
    if constexpr (C::kCarries)
      inputs_.scales = {reinterpret_cast<const std::byte*>(scales_.data()), config_.tokens,
                        static_cast<std::int64_t>(C::carried_scales(hidden()) * sizeof(float))};
    outputs_ = {.output = {y_.data(), config_.tokens, config_.hidden}, .launch = config_.launch};
    if (config_.external)
      outputs_.input = {external_.data(), static_cast<std::int64_t>(problem_.received(rank).size()), config_.hidden};
  }

  //! One dispatch, the experts, one combine, all of it checked.
  bool verify(const Verifier<T>& verifier) {
    verifier.fill_input(rank_, x_.data());
    if constexpr (C::kCarries) {
      for (std::size_t t = 0; t < problem_.tokens(); ++t)
        C::to_input(x_.data() + t * hidden(), t, hidden(), sent_.data() + t * hidden(),
                    scales_.data() + t * C::carried_scales(hidden()));
    }
    y_.poison();
    if (!meeting_.wait()) return false;
    auto got = ep_.dispatch(inputs_, stream_);
    if (!got.ok()) return complain(got.message());
    if (mori_ep::Status s = ep_.check(got->ticket, stream_); !s.ok()) return complain(s.message());
    const T* rows = nullptr;
    if constexpr (C::kPlainDispatch) {
      rows = got->rows.data;
    } else {
      rows = rows_.data();
      auto const scales = static_cast<std::size_t>(got->scales.cols);
      for (std::size_t i = 0; i < std::min(static_cast<std::size_t>(*got->recv_count), rows_.size() / hidden()); ++i)
        C::to_elements(got->rows.data + i * hidden(), got->scales.data + i * scales, hidden(),
                       rows_.data() + i * hidden());
    }
    Received<T> const received{.count = *got->recv_count,
                               .rows = rows,
                               .ids = got->indices.data,
                               .weights = got->weights.data,
                               .sources = ep_.get_dispatch_src_token_pos(got->ticket).data,
                               .expert_count = got->expert_count};
    std::string const wrong = verifier.check_dispatched(rank_, received);
    T* results = external_.data();
    if constexpr (mori_ep::quant::HasPlainCombine<typename Ep::Wire>)
      if (!config_.external) results = ep_.get_registered_combine_input_buffer(got->ticket).data;
    if (wrong.empty()) verifier.apply_experts(rank_, received, results);
    if (!wrong.empty()) return complain(wrong);
    if (!meeting_.wait()) return false;
    if (mori_ep::Status s = ep_.combine(std::move(got->ticket), outputs_, stream_); !s.ok())
      return complain(s.message());
    stream_.synchronize();
    return check_outputs(verifier);
  }

  //! The experts' rows of the verification stay where they are, so every combine of the loop has the same result.
  bool time(const Verifier<T>& verifier, const Progress& progress) {
    int const warmup = config_.warmup, all = warmup + config_.iterations;
    for (int i = -warmup; i < config_.iterations; ++i) {
      if (rank_ == 0) progress(static_cast<double>(i + warmup) / all);
      if (!time_phases(i) || !time_pair(i)) return false;
    }
    // Once more, untimed, so that an output left from an earlier iteration cannot pass.
    y_.poison();
    if (!time_pair(-1)) return false;
    if (mori_ep::Status s = ep_.status(); !s.ok()) return complain(s.message());
    return check_outputs(verifier);
  }

  //! One more of each phase, untimed, to see what goes over the network.
  bool count(Wire& wire) {
    double const before = bytes_put();
    if (!meeting_.wait()) return false;
    auto got = ep_.dispatch(inputs_, stream_);
    stream_.synchronize();
    if (!got.ok()) return complain(got.message());
    if (!meeting_.wait()) return false;
    double const between = bytes_put();
    if (!meeting_.wait()) return false;
    mori_ep::Status const combined = ep_.combine(std::move(got->ticket), outputs_, stream_);
    stream_.synchronize();
    if (!combined.ok()) return complain(combined.message());
    if (!meeting_.wait()) return false;
    wire.dispatch_bytes = between - before;
    wire.combine_bytes = bytes_put() - between;
    return true;
  }

 private:
  //! Once nothing is on its way and the books stand still: a card counts after it has been given what peers already saw.
  [[nodiscard]] double bytes_put() const {
    double sum = -1;
    for (int still = 0, looks = 0; still < 3 && looks < 1000; ++looks) {
      double now = 0;
      bool quiet = true;
      for (int peer = 0; peer < config_.world; ++peer) {
        mori_ep::fabric::Traffic const t = ep_.network_traffic(peer);
        now += static_cast<double>(t.bytes);
        quiet = quiet && t.messages == t.completions + t.errors;
      }
      still = quiet && now == sum ? still + 1 : 0;
      sum = now;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return sum;
  }
  bool time_phases(int i) {
    if (!meeting_.wait()) return false;
    Span dispatch{now_us(), 0}, combine;
    auto got = ep_.dispatch(inputs_, stream_);
    stream_.synchronize();
    dispatch.end_us = now_us();
    if (!got.ok()) return complain(got.message());
    if (!meeting_.wait()) return false;
    combine.begin_us = now_us();
    mori_ep::Status const combined = ep_.combine(std::move(got->ticket), outputs_, stream_);
    stream_.synchronize();
    combine.end_us = now_us();
    if (!combined.ok()) return complain(combined.message());
    if (i >= 0) {
      timings_.dispatch.at(i, 0) = dispatch;
      timings_.combine.at(i, 0) = combine;
    }
    return true;
  }
  bool time_pair(int i) {
    if (!meeting_.wait()) return false;
    Span pair{now_us(), 0};
    auto got = ep_.dispatch(inputs_, stream_);
    if (!got.ok()) return complain(got.message());
    mori_ep::Status const combined = ep_.combine(std::move(got->ticket), outputs_, stream_);
    stream_.synchronize();
    pair.end_us = now_us();
    if (!combined.ok()) return complain(combined.message());
    if (i >= 0) timings_.pair.at(i, 0) = pair;
    return true;
  }

  bool check_outputs(const Verifier<T>& verifier) {
    if (auto wrong = verifier.check_combined(rank_, y_.data()); !wrong.empty()) return complain(wrong);
    if (auto wrong = verifier.check_input(rank_, x_.data()); !wrong.empty()) return complain(wrong);
    return true;
  }
  bool complain(const std::string& what) {
    meeting_.give_up(what);
    return false;
  }
  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(config_.hidden); }

  const Problem& problem_;
  const Config& config_;
  Meeting& meeting_;
  Timings& timings_;
  int rank_;
  Ep& ep_;
  Buffer<T> x_;
  Buffer<typename C::Input> sent_;  // x_ as codes, where the caller's are
  Buffer<float> scales_;
  Buffer<T> rows_;  // received, as elements, where they are codes
  Buffer<T> y_, external_;
  typename Ep::DispatchInputs inputs_;
  typename Ep::CombineInputs outputs_;
  mori_ep::exec::Host::Stream stream_;
};

//! @brief The spans of all ranks, on every rank.
inline Spans gather(const mori_ep::Communicator& comm, Spans& own) {
  std::vector<Span> all(own.size() * static_cast<std::size_t>(comm.world()));
  comm.all_gather(own.data(), all.data(), own.size() * sizeof(Span)).or_throw();
  return Spans::of_ranks(all, comm.world());
}

//! @brief What all ranks put on the wire, on every rank.
inline Wire gather(const mori_ep::Communicator& comm, const Wire& own) {
  auto const world = static_cast<std::size_t>(comm.world());
  double const mine[] = {own.dispatch_bytes, own.combine_bytes};
  std::vector<double> all(2 * world);
  comm.all_gather(mine, all.data(), sizeof(mine)).or_throw();
  Wire sum;
  for (std::size_t r = 0; r < world; ++r) sum.dispatch_bytes += all[2 * r], sum.combine_bytes += all[2 * r + 1];
  sum.traffic.resize(world * world);
  comm.all_gather(own.traffic.data(), sum.traffic.data(), world * sizeof(mori_ep::fabric::Traffic)).or_throw();
  return sum;
}

//! @brief Verifies, times, verifies again, with the operator `Ep`; see run_rank().
template <class Ep>
Outcome run_with(const Problem& problem, const mori_ep::Communicator& comm, Meeting& meeting, const Progress& progress,
                 const typename Ep::TransportOptions& network = {}) {
  using C = Coding<typename Ep::Wire>;
  using T = typename C::T;
  const Config& config = problem.config();
  Timings own = with_memory_for("the times of " + std::to_string(config.iterations) + " iterations",
                                3 * sizeof(Span) * static_cast<std::uint64_t>(config.iterations),
                                [&] { return Timings(config.iterations); });
  Outcome out;
  Wire wire;
  try {
    // Other rows the second time: what a dispatch left behind in the first cannot pass for what the last one brought.
    Verifier<T> const before(problem, config.seed, C::dispatch_error, C::combine_error),
        after(problem, ~config.seed, C::dispatch_error, C::combine_error);
    // The library's deadlines begin when all are there.
    if (meeting.wait()) {
      auto ep = Ep::create(comm, operator_config(config), {}, -1, network);
      ep.status().or_throw();
      Rank<Ep> rank(problem, meeting, own, comm.rank(), *ep);
      if (rank.verify(before) && rank.time(before, progress) && rank.count(wire) && rank.verify(after))
        for (int peer = 0; peer < comm.world(); ++peer) wire.traffic.push_back(ep->network_traffic(peer));
    }
  } catch (const std::exception& error) {
    meeting.give_up(text_of(error));
  }
  if (!meeting.wait()) {
    out.check = meeting.complaint().text;
    return out;
  }
  try {
    double const d = problem.dispatch_bytes(), c = problem.combine_bytes() + problem.staging_bytes();
    out.phases = {{gather(comm, own.dispatch), d}, {gather(comm, own.combine), c}, {gather(comm, own.pair), d + c}};
    if (!config.near_only()) out.wire = gather(comm, wire);
    out.check = "ok";
  } catch (const std::exception& error) {
    out.check = text_of(error);
  }
  return out;
}

}  // namespace ep_bench
