// SPDX-License-Identifier: MIT
#include "run.hpp"

#include <cstddef>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

#include "buffer.hpp"
#include "element_types.hpp"
#include "meeting.hpp"
#include "mori_ep/mori_ep.hpp"
#include "verify.hpp"

namespace ep_bench {
namespace {

using mori_ep::Communicator;
using mori_ep::Result;
using mori_ep::Status;

template <class T>
using Operator = mori_ep::EpDispatchCombine<mori_ep::transport::Xgmi, mori_ep::schedule::IntraNode,
                                            mori_ep::quant::None<T>, mori_ep::exec::Host>;

//! What the ranks' threads share.
struct Shared {
  explicit Shared(const Problem& p)
      : problem(p),
        meeting(p.config().world),
        complaints(static_cast<std::size_t>(p.config().world)),
        dispatch(p.config().iterations, p.config().world),
        combine(p.config().iterations, p.config().world),
        pair(p.config().iterations, p.config().world) {}
  const Problem& problem;
  Meeting meeting;
  std::vector<std::string> complaints;  // by rank
  Spans dispatch, combine, pair;
};

//! One rank. Members return false when the run is over: this rank has complained, or another has.
template <class T>
class Rank {
 public:
  using Ep = Operator<T>;
  Rank(Shared& shared, int rank, Ep& ep)
      : shared_(shared),
        problem_(shared.problem),
        config_(problem_.config()),
        rank_(rank),
        ep_(ep),
        x_(problem_.tokens() * hidden()),
        y_(x_.size()),
        external_(config_.external ? problem_.received(rank).size() * hidden() : 0) {
    inputs_ = {.input = {x_.data(), config_.tokens, config_.hidden},
               .indices = {problem_.ids(rank), config_.tokens, config_.topk},
               .weights = {problem_.weights(rank), config_.tokens, config_.topk},
               .launch = config_.launch};
    outputs_ = {.output = {y_.data(), config_.tokens, config_.hidden}, .launch = config_.launch};
    if (config_.external)
      outputs_.input = {external_.data(), static_cast<std::int64_t>(problem_.received(rank).size()), config_.hidden};
  }

  //! One dispatch, the experts, one combine, all of it checked.
  bool verify(const Verifier<T>& verifier) {
    verifier.fill_input(rank_, x_.data());
    y_.poison();
    if (!shared_.meeting.wait()) return false;
    auto got = ep_.dispatch(inputs_, stream_);
    if (!got.ok()) return complain(got.message());
    if (Status s = ep_.check(got->ticket, stream_); !s.ok()) return complain(s.message());
    Received<T> const received{.count = *got->recv_count,
                               .rows = got->rows.data,
                               .ids = got->indices.data,
                               .weights = got->weights.data,
                               .sources = ep_.get_dispatch_src_token_pos(got->ticket).data,
                               .expert_count = got->expert_count};
    std::string const wrong = verifier.check_dispatched(rank_, received);
    auto const registered = ep_.get_registered_combine_input_buffer(got->ticket);
    if (wrong.empty()) verifier.apply_experts(rank_, received, config_.external ? external_.data() : registered.data);
    if (!wrong.empty()) return complain(wrong);
    if (!shared_.meeting.wait()) return false;
    if (Status s = ep_.combine(std::move(got->ticket), outputs_, stream_); !s.ok()) return complain(s.message());
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
    if (Status s = ep_.status(); !s.ok()) return complain(s.message());
    return check_outputs(verifier);
  }

 private:
  bool time_phases(int i) {
    if (!shared_.meeting.wait()) return false;
    Span dispatch{now_us(), 0}, combine;
    auto got = ep_.dispatch(inputs_, stream_);
    stream_.synchronize();
    dispatch.end_us = now_us();
    if (!got.ok()) return complain(got.message());
    if (!shared_.meeting.wait()) return false;
    combine.begin_us = now_us();
    Status const combined = ep_.combine(std::move(got->ticket), outputs_, stream_);
    stream_.synchronize();
    combine.end_us = now_us();
    if (!combined.ok()) return complain(combined.message());
    if (i >= 0) {
      shared_.dispatch.at(i, rank_) = dispatch;
      shared_.combine.at(i, rank_) = combine;
    }
    return true;
  }
  bool time_pair(int i) {
    if (!shared_.meeting.wait()) return false;
    Span pair{now_us(), 0};
    auto got = ep_.dispatch(inputs_, stream_);
    if (!got.ok()) return complain(got.message());
    Status const combined = ep_.combine(std::move(got->ticket), outputs_, stream_);
    stream_.synchronize();
    pair.end_us = now_us();
    if (!combined.ok()) return complain(combined.message());
    if (i >= 0) shared_.pair.at(i, rank_) = pair;
    return true;
  }

  bool check_outputs(const Verifier<T>& verifier) {
    if (auto wrong = verifier.check_combined(rank_, y_.data()); !wrong.empty()) return complain(wrong);
    if (auto wrong = verifier.check_input(rank_, x_.data()); !wrong.empty()) return complain(wrong);
    return true;
  }
  bool complain(std::string what) {
    shared_.complaints[static_cast<std::size_t>(rank_)] = std::move(what);
    shared_.meeting.give_up();
    return false;
  }
  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(config_.hidden); }

  Shared& shared_;
  const Problem& problem_;
  const Config& config_;
  int rank_;
  Ep& ep_;
  Buffer<T> x_, y_, external_;
  typename Ep::DispatchInputs inputs_;
  typename Ep::CombineInputs outputs_;
  mori_ep::exec::Host::Stream stream_;
};

template <class T>
Outcome run_typed(const Problem& problem, const Progress& progress) {
  const Config& config = problem.config();
  Shared shared(problem);
  // Other rows the second time: what a dispatch left behind in the first cannot pass for what the last one brought.
  Verifier<T> const before(problem, config.seed), after(problem, ~config.seed);
  Status const status = mori_ep::LocalWorld(config.world).run([&](Communicator& comm) -> Status {
    try {
      auto ep = Operator<T>::create(comm, operator_config(config));
      if (!ep.ok()) return ep.status();
      Rank<T> rank(shared, comm.rank(), *ep);
      if (rank.verify(before) && rank.time(before, progress)) (void)rank.verify(after);
    } catch (const std::exception& error) {
      shared.complaints[static_cast<std::size_t>(comm.rank())] = error.what();
      shared.meeting.give_up();
    }
    return {};
  });
  Outcome out;
  out.check = status.ok() ? "ok" : status.message();
  for (auto const& complaint : shared.complaints)
    if (!complaint.empty() && out.ok()) out.check = complaint;
  if (!out.ok()) return out;
  double const d = problem.dispatch_bytes(), c = problem.combine_bytes() + problem.staging_bytes();
  out.phases = {{shared.dispatch, d}, {shared.combine, c}, {shared.pair, d + c}};
  return out;
}

}  // namespace

mori_ep::EpDispatchCombineConfig operator_config(const Config& c) {
  return {.hidden_dim = c.hidden,
          .max_num_inp_token_per_rank = c.max_tokens(),
          .num_experts_per_rank = c.experts_per_rank(),
          .num_experts_per_token = c.topk,
          .num_experts = c.experts,
          .block_num = c.launch.block_num,
          .warp_num_per_block = c.launch.warp_per_block};
}

mori_ep::Footprint footprint(const Config& config) {
  return with_element_type(config.dtype, [&]<class T>(T) {
    auto const result = Operator<T>::footprint(operator_config(config), config.world);
    if (!result.ok()) throw UsageError(result.message());
    return *result;
  });
}

std::int64_t needed_bytes(const Problem& problem) {
  const Config& c = problem.config();
  mori_ep::Footprint const arena = footprint(c);
  // Pages of rows that no token is sent to are never touched; all else of an arena is counted as if it were.
  auto const row = static_cast<std::int64_t>(c.row_bytes());
  std::int64_t const capacity = std::int64_t{c.world} * c.world * c.max_tokens();
  auto const rows = static_cast<std::int64_t>(problem.rows()), tokens = std::int64_t{c.world} * c.tokens;
  return c.world * static_cast<std::int64_t>(arena.bytes) - 2 * (capacity - rows) * row + 2 * tokens * row +
         (c.external ? rows * row : 0);
}

Outcome run_host(const Problem& problem, const Progress& progress) {
  return with_element_type(problem.config().dtype, [&]<class T>(T) { return run_typed<T>(problem, progress); });
}

}  // namespace ep_bench
