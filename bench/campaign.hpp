// SPDX-License-Identifier: MIT
//! @file From options to a report: which configurations, whether they fit, and running them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mori_ep/env.hpp"
#include "report.hpp"

namespace ep_bench {

class Ranks;

//! @brief What a rank is, and who starts it.
enum class RanksAre {
  threads,  //!< of this process; with --exec cuda streams
  spawned,  //!< forks of this process
  mpi,      //!< processes that a launcher has started, this one among them
  joined    //!< processes that somebody starts one by one, this one among them
};

//! @brief The command line, parsed.
struct Options {
  int world = 8;
  std::string world_option = "--world";  //!< what gave it, for messages
  RanksAre ranks_are = RanksAre::threads;
  int rank = -1;                     //!< joined: this process's
  std::string id;                    //!< joined: where they meet, host:port or file:PATH
  std::string job;                   //!< joined: a name that tells it from other jobs with that id; may be empty
  mori_ep::Environment environment;  //!< of the process
  std::vector<int> tokens, hidden, topk;
  bool topk_given = false;
  int experts = 256;
  std::vector<std::string> dtypes;
  std::string schedule = "intranode";
  std::string transport;  //!< empty: the schedule's
  int nodes = 0;          //!< 0: the schedule's
  bool stats = false;     //!< print what each rank put to each peer
  std::string routing = "uniform";
  bool external = false;
  int blocks = 0, warps = 0;
  int rows_per_put = 0;
  std::string quant = "none";
  int iterations = 50, warmup = 5;
  std::uint64_t seed = 1;
  std::string exec = "host";
  int devices = 1;  //!< of the GPU forms, as graph and cold
  bool graph = false, cold = true;
  Format format = Format::table;
  std::string save;  //!< a file for the JSON form, besides what is printed
  bool per_rank = false;
  std::string flags;  //!< the whole command line
};

//! @brief Every combination of the lists, checked and with its routes.
//! @throw UsageError
[[nodiscard]] std::vector<Problem> make_problems(const Options& options);

//! @brief Warns on stderr of what makes timings worthless.
void warn_of_noise(const Machine& machine);

//! @brief Warns on stderr when the arenas are larger than the memory, though what is touched fits.
//! @param more bytes needed besides mori_ep's
//! @throw UsageError when the problem does not fit the memory that is free now
void check_memory(const Problem& problem, std::int64_t more = 0);

//! @brief Runs mori_ep on the problem, with progress on the first process's stderr.
//! @param before configurations already run, of `all`
[[nodiscard]] Row run_mori(const Problem& problem, Ranks& ranks, std::size_t before, std::size_t all);

//! @brief `ep_bench run`, in every process that holds ranks.
//! @return the exit code
int run(const Options& options);

//! @brief `ep_bench mpi-baseline`, on every process under mpirun.
//! @return the exit code
int mpi_baseline(const Options& options);

}  // namespace ep_bench
