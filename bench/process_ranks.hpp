// SPDX-License-Identifier: MIT
//! @file Ranks that are processes of one host: how they start, meet, and end together.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "campaign.hpp"
#include "meeting.hpp"
#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/mori_ep.hpp"
#include "ranks.hpp"

namespace ep_bench {

//! @brief Tells which peers' processes have ended: each holds the end of a pipe that closes with it.
class Lifelines {
 public:
  //! @brief Collective.
  [[nodiscard]] static mori_ep::Result<Lifelines> join(const mori_ep::Communicator& comm);
  //! @brief A rank that has ended, or -1.
  [[nodiscard]] int ended() const;

 private:
  mori_ep::comm::Fd held_;
  std::vector<mori_ep::comm::Fd> of_rank_;
};

//! @brief Another rank ended the run; its own process says why.
struct EndedByPeer : std::runtime_error {
  int exit_code;
  explicit EndedByPeer(const Complaint& c) : std::runtime_error(c.text), exit_code(c.exit_code) {}
};

//! @brief This process's part in a campaign, as one rank. What ends one rank ends all.
class ProcessRank final : public Ranks {
 public:
  //! @brief Collective, with the same options in every process.
  //! @param problems at most so many calls of measure()
  //! @throw UsageError where the ranks are on several hosts or were given different options
  ProcessRank(mori_ep::Communicator comm, const Options& options, std::size_t problems);

  [[nodiscard]] int rank() const noexcept { return comm_.rank(); }
  [[nodiscard]] bool first() const noexcept override { return rank() == 0; }
  void alone(const std::function<void()>& work) override;
  [[nodiscard]] Outcome measure(const Problem& problem, const Progress& progress) override;
  void give_up(const std::string& why, int exit_code) { together_->give_up(why, exit_code); }

 private:
  [[nodiscard]] Meeting meeting_at(std::size_t board);
  void meet();

  mori_ep::Communicator comm_;
  bool bound_;  // perhaps, to a few cores
  std::shared_ptr<Lifelines> lifelines_;
  mori_ep::comm::SymmetricHeap<mori_ep::exec::Host> heap_;  // rank 0's arena holds the boards
  std::unique_ptr<Meeting> together_;                       // between the problems
  std::size_t measured_ = 0;
};

//! @brief What the ranks do; ends with a call that all make.
//! @return the exit code
using Campaign = std::function<int(Ranks&)>;

//! @brief How this process joins the others.
using Join = std::function<mori_ep::Result<std::shared_ptr<mori_ep::comm::Bootstrap>>()>;

//! @brief How a rank's part ended.
struct Ending {
  int exit_code = 0;
  bool together = false;  //!< all ranks came to the end of the campaign
};

//! @brief Joins, runs the campaign as one rank, and says on stderr what ended it.
//! @param speak_up also where another rank is to blame, whose process has said so
[[nodiscard]] Ending run_as_rank(int rank, const Options& options, std::size_t problems, const Join& join,
                                 const Campaign& campaign, bool speak_up);

//! @brief The ranks are forks of this process.
[[nodiscard]] int run_spawned(const Options& options, std::size_t problems, const Campaign& campaign);

//! @brief This process is the one rank that the options say.
[[nodiscard]] int run_joined(const Options& options, std::size_t problems, const Campaign& campaign);

//! @brief This process is a rank of an MPI job.
//! @throw UsageError when built without MPI
[[nodiscard]] int run_under_mpi(const Options& options, std::size_t problems, const Campaign& campaign);

}  // namespace ep_bench
