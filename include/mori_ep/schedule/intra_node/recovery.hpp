// SPDX-License-Identifier: MIT
//! @file Where the ranks of a recovery meet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/error.hpp"

namespace mori_ep::schedule::intra_node {

enum class Step : std::uint32_t { begin = 1, network_ended, ready };
enum class Going { on, elsewhere };

//! @brief A meeting of a recovery, of a rank that had `before` members. Ranks that have come to different steps (one of
//!        them took a call for over that the others gave up) all see it and fail, and so begin their next recover()
//!        together. To new arenas they go when any of them has more members than shall be left: one may have moved in a
//!        recovery that the others gave up.
inline Result<Going> agree(const comm::Communicator& comm, std::span<const int> members, Step step,
                           std::size_t before) {
  struct Word {
    Step step;
    std::uint32_t members;
  };
  Word const mine{step, static_cast<std::uint32_t>(before)};
  std::vector<Word> words(members.size());
  if (Status s = comm.all_gather(members, &mine, words.data(), sizeof(mine)); !s.ok()) return s;
  Going going = Going::on;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].step != words[0].step)
      return Error{.code = Errc::out_of_step,
                   .phase = Phase::barrier,
                   .rank = comm.rank(),
                   .peer = members[i],
                   .expected = static_cast<std::uint64_t>(words[0].step),
                   .seen = static_cast<std::uint64_t>(words[i].step),
                   .hint = "The ranks are at different steps of a recovery: bring every rank to recover() again."};
    if (words[i].members != members.size()) going = Going::elsewhere;
  }
  return going;
}

}  // namespace mori_ep::schedule::intra_node
