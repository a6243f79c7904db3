// SPDX-License-Identifier: MIT
//! @file `ep_bench mpi-baseline`: MPI's times and mori_ep's, in turn, in one run.
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include <mpi.h>

#include "campaign.hpp"
#include "element_types.hpp"
#include "host_ceilings.hpp"
#include "mpi_alltoallv.hpp"
#include "mpi_session.hpp"
#include "no_memory.hpp"
#include "ranks.hpp"

namespace ep_bench {
namespace {

//! A barrier in which processes sleep: MPI's own would take the cores from whoever is still at work.
void sleep_until_all_are_here(unsigned poll_us) {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE), done == 0;) ::usleep(poll_us);
}

//! As Meeting::wait: first all come, asleep; then all start together.
void meet() {
  sleep_until_all_are_here(100);
  MPI_Barrier(MPI_COMM_WORLD);
}

//! The same text on every process: that of the lowest rank that has one.
std::string first_complaint(const std::string& mine, const MpiSession& session) {
  int const claim = mine.empty() ? session.world() : session.rank();
  int owner = 0;
  MPI_Allreduce(&claim, &owner, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (owner == session.world()) return {};
  auto length = static_cast<int>(mine.size());
  MPI_Bcast(&length, 1, MPI_INT, owner, MPI_COMM_WORLD);
  std::string text = mine;
  text.resize(static_cast<std::size_t>(length));
  MPI_Bcast(text.data(), length, MPI_CHAR, owner, MPI_COMM_WORLD);
  return text;
}

//! All processes' spans on rank 0.
Spans gather(Spans& own, const MpiSession& session) {
  auto const n = static_cast<int>(own.size());
  std::vector<Span> all(own.size() * static_cast<std::size_t>(session.world()));
  MPI_Gather(own.data(), 2 * n, MPI_DOUBLE, all.data(), 2 * n, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return Spans::of_ranks(all, session.world());
}

template <class T>
class MpiRank {
 public:
  MpiRank(const Problem& problem, const MpiSession& session)
      : config_(problem.config()), problem_(problem), session_(session), work_(problem, session.rank()) {}

  Outcome run() {
    Verifier<T> const before(problem_, config_.seed, no_error, no_error),
        after(problem_, ~config_.seed, no_error, no_error);
    Outcome out;
    Spans dispatch(config_.iterations, 1), combine(config_.iterations, 1), pair(config_.iterations, 1);
    std::string wrong = verify(before);
    if (wrong.empty()) {
      for (int i = -config_.warmup; i < config_.iterations; ++i) {
        Span const d = timed([&] { work_.dispatch(); });
        Span const c = timed([&] { work_.combine(); });
        Span const p = timed([&] {
          work_.dispatch();
          work_.combine();
        });
        if (i < 0) continue;
        dispatch.at(i, 0) = d;
        combine.at(i, 0) = c;
        pair.at(i, 0) = p;
      }
      work_.poison_output();
      work_.dispatch();
      work_.combine();
      wrong = first_complaint(check_outputs(before), session_);
    }
    if (wrong.empty()) wrong = verify(after);
    out.check = wrong.empty() ? "ok" : "MPI " + wrong;
    double const d = problem_.dispatch_bytes(), c = problem_.combine_bytes();
    Phases phases{{gather(dispatch, session_), d}, {gather(combine, session_), c}, {gather(pair, session_), d + c}};
    if (out.ok()) out.phases = std::move(phases);
    return out;
  }

 private:
  template <class F>
  static Span timed(F&& f) {
    meet();
    Span span{now_us(), 0};
    f();
    span.end_us = now_us();
    return span;
  }
  std::string verify(const Verifier<T>& verifier) {
    verifier.fill_input(session_.rank(), work_.input());
    work_.poison_output();
    work_.dispatch();
    std::string wrong = verifier.check_dispatched(session_.rank(), work_.received());
    if (wrong.empty()) verifier.apply_experts(session_.rank(), work_.received(), work_.answers());
    work_.combine();
    if (wrong.empty()) wrong = check_outputs(verifier);
    return first_complaint(wrong, session_);
  }
  std::string check_outputs(const Verifier<T>& verifier) {
    std::string wrong = verifier.check_combined(session_.rank(), work_.output());
    return wrong.empty() ? verifier.check_input(session_.rank(), work_.input()) : wrong;
  }

  const Config& config_;
  const Problem& problem_;
  const MpiSession& session_;
  Alltoallv<T> work_;
};

//! Work of rank 0 alone, on every core, while the others sleep.
template <class F>
void alone(const MpiSession& session, F&& f) {
  if (session.rank() == 0) on_every_core(f);
  sleep_until_all_are_here(2000);
}

int measure(const MpiSession& session, const Options& given) {
  if (session.world() < 2)
    throw UsageError("there is one MPI process: start it as mpirun --oversubscribe -np 8 ep_bench mpi-baseline ...");
  if (!session.one_machine())
    throw UsageError("the MPI processes must all be on one machine: their clocks are compared.");
  Options options = given;
  options.world = session.world();
  options.world_option = "mpirun -np";
  bool const first = session.rank() == 0;
  std::vector<Problem> problems;
  std::string refused;  // what one process refuses, all refuse: free memory may differ between them
  try {
    problems = make_problems(options);
    for (auto const& problem : problems)
      if (first) check_memory(problem, alltoallv_bytes(problem));
  } catch (const UsageError& error) {
    refused = error.what();
  }
  if (refused = first_complaint(refused, session); !refused.empty()) throw UsageError(refused);

  Report report{.machine = Machine::here(),
                .devices = {},
                .flags = options.flags,
                .mpi = MpiSession::library(),
                .seed = options.seed,
                .per_rank = options.per_rank,
                .ceilings = nullptr,
                .rows = {}};
  if (first) warn_of_noise(report.machine);
  std::unique_ptr<HostCeilings> ceilings;
  alone(session, [&] {
    ceilings = std::make_unique<HostCeilings>(options.world);
    ceilings->measure();
  });
  report.ceilings = ceilings.get();
  ThreadRanks ranks(options.environment);  // of mori_ep, all in the first process
  for (auto const& problem : problems) {
    Outcome mpi =
        with_element_type(problem.config().dtype, [&]<class T>(T) { return MpiRank<T>(problem, session).run(); });
    alone(session, [&] {
      report.rows.push_back(run_mori(problem, ranks, report.rows.size(), problems.size()));
      if (!mpi.ok()) std::fprintf(stderr, "  %s\n", mpi.check.c_str());
      report.rows.back().mpi = std::move(mpi);
    });
  }
  alone(session, [&] { ceilings->measure(); });
  int code = 0;
  if (first) {
    print(std::cout, report, options.format);
    code = report.ok() ? 0 : 1;
  }
  MPI_Bcast(&code, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return code;
}

}  // namespace

int mpi_baseline(const Options& options) {
  MpiSession const session;
  try {
    return measure(session, options);
  } catch (const UsageError&) {
    throw;  // every process throws it
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ep_bench: rank %d: %s\n", session.rank(), text_of(error).c_str());
    MPI_Abort(MPI_COMM_WORLD, 1);  // the others wait in a collective call for this one
    return 1;
  }
}

}  // namespace ep_bench
