// SPDX-License-Identifier: MIT
//! @file Ranks that are processes of one host: how they start, meet, and end together.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

#include "campaign.hpp"
#include "meeting.hpp"
#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/mori_ep.hpp"
#include "peer_watch.hpp"
#include "ranks.hpp"

namespace ep_bench {

//! @brief Another rank ended the run; its own process says why, or the witness.
struct EndedByPeer : std::runtime_error {
  Complaint complaint;
  explicit EndedByPeer(const Complaint& c) : std::runtime_error(c.text), complaint(c) {}
};

//! @brief This process's part in a campaign, as one rank. What ends one rank ends all.
class ProcessRank final : public Ranks {
 public:
  //! @brief Collective, with the same options in every process.
  //! @param problems at most so many calls of measure()
  //! @param leave ends this process, should the run end where its thread does not see it
  //! @throw UsageError where the ranks are on several hosts or were given different options
  ProcessRank(mori_ep::Communicator comm, const Options& options, std::size_t problems, PeerWatch::Leave leave);

  [[nodiscard]] int rank() const noexcept { return comm_.rank(); }
  [[nodiscard]] bool first() const noexcept override { return rank() == 0; }
  void alone(const std::function<void()>& work) override;
  [[nodiscard]] Outcome measure(const Problem& problem, const Progress& progress) override;
  void give_up(const std::string& why, int exit_code) { together_->give_up(why, exit_code); }

 private:
  [[nodiscard]] Meeting meeting_at(std::size_t board) { return {boards_[board], rank(), comm_.world()}; }
  void meet();

  mori_ep::Communicator comm_;
  bool bound_;                                              // perhaps, to a few cores
  mori_ep::comm::SymmetricHeap<mori_ep::exec::Host> heap_;  // rank 0's arena holds the pulses, then the boards
  std::span<MeetingBoard> boards_;                          // one for between the problems, and one for each
  std::unique_ptr<Meeting> together_;                       // between the problems
  std::size_t measured_ = 0;
  std::unique_ptr<PeerWatch> watch_;
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
