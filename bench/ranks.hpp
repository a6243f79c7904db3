// SPDX-License-Identifier: MIT
//! @file Who runs a campaign: one process with all ranks in it, or a process for each rank.
#pragma once

#include <functional>

#include <sched.h>

#include "mori_ep/env.hpp"
#include "run.hpp"

namespace ep_bench {

//! @brief Calls `work` with this thread, and those that it starts, free to run on every core: a launcher such as mpirun
//!        may have bound the process to a few.
template <class F>
void on_every_core(F&& work) {
  cpu_set_t bound, every;
  ::sched_getaffinity(0, sizeof(bound), &bound);
  CPU_ZERO(&every);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) CPU_SET(cpu, &every);
  ::sched_setaffinity(0, sizeof(every), &every);
  work();
  ::sched_setaffinity(0, sizeof(bound), &bound);
}

//! @brief The processes of a campaign. Each makes the same calls in the same order.
class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  virtual ~Ranks() = default;
  //! @brief Is this the process that prints?
  [[nodiscard]] virtual bool first() const noexcept = 0;
  //! @brief Work of the first process alone, while the others sleep.
  virtual void alone(const std::function<void()>& work) = 0;
  //! @brief Measures one problem with all ranks.
  //! @return the same in every process
  [[nodiscard]] virtual Outcome measure(const Problem& problem, const Progress& progress) = 0;
};

//! @brief All ranks in this process.
class OneProcess : public Ranks {
 public:
  [[nodiscard]] bool first() const noexcept final { return true; }
  void alone(const std::function<void()>& work) final { work(); }
};

class ThreadRanks final : public OneProcess {
 public:
  explicit ThreadRanks(const mori_ep::Environment& environment) : environment_(environment) {}
  [[nodiscard]] Outcome measure(const Problem& problem, const Progress& progress) override {
    return run_threads(problem, environment_, progress);
  }

 private:
  mori_ep::Environment environment_;
};

}  // namespace ep_bench
