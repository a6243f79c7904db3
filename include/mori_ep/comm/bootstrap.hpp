// SPDX-License-Identifier: MIT
//! @file How ranks find each other before there is shared memory: an all-gather of bytes among some or all of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mori_ep/error.hpp"

namespace mori_ep::comm {

//! @brief Host-side collectives among ranks of one world. The members of a call all make it, and in the same order as
//!        their other calls; calls among different members do not disturb each other. One thread per rank at a time.
//!
//! Errors: members that do not come within the timeout, or whose process has ended, give `Errc::missing_rank` naming
//! them, on every member that came, also on one that comes later. The call after that is a new one for all. (No network
//! can promise that without exception: of processes one may come to the end of a call at the very moment when the others
//! give it up. A step that must not be taken alone says in its bytes which step it is.)
class Bootstrap {
 public:
  Bootstrap() = default;
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;
  virtual ~Bootstrap() = default;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int world() const noexcept = 0;
  [[nodiscard]] virtual std::chrono::nanoseconds timeout() const noexcept = 0;
  //! @brief Gathers `bytes` from each of `members` (ascending ranks, this one among them) into `recv`
  //!        [members.size() * bytes], in their order. `within`: a timeout of this call's own.
  virtual Status all_gather(std::span<const int> members, const void* send, void* recv, std::size_t bytes,
                            std::chrono::nanoseconds within) noexcept = 0;
  Status all_gather(std::span<const int> members, const void* send, void* recv, std::size_t bytes) noexcept {
    return all_gather(members, send, recv, bytes, timeout());
  }
};

//! @brief [0, world).
[[nodiscard]] inline std::vector<int> all_ranks(int world) {
  std::vector<int> ranks(static_cast<std::size_t>(world < 0 ? 0 : world));
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  return ranks;
}

//! @brief "1, 3, 5", for messages.
[[nodiscard]] inline std::string list_of(std::span<const int> ranks) {
  std::string text;
  for (int rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

//! @brief Where `rank` stands in `members`; refuses members that are no ascending ranks of the world, or not of it.
[[nodiscard]] inline Result<std::size_t> place_of(std::span<const int> members, int rank, int world) noexcept {
  std::size_t place = members.size();
  int before = -1;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i] <= before || members[i] >= world)
      return Error{.code = Errc::invalid_argument,
                   .rank = rank,
                   .field = "member of a group",
                   .value = members[i],
                   .limit = members[i] <= before ? std::int64_t{before} + 1 : std::int64_t{world} - 1,
                   .hint = "Members are ranks of the world, ascending, each once."};
    if (members[i] == rank) place = i;
    before = members[i];
  }
  if (place == members.size())
    return Error{.code = Errc::invalid_argument,
                 .rank = rank,
                 .field = "member of a group",
                 .value = rank,
                 .hint = "Only members make a group's calls."};
  return place;
}

//! @brief `peers` did not come; where others are among them, not `rank` itself, which came later than they liked.
[[nodiscard]] inline Status missing(int rank, std::vector<int> peers) {
  if (peers.size() > 1) std::erase(peers, rank);
  return Error{.code = Errc::missing_rank,
               .phase = Phase::barrier,
               .rank = rank,
               .peer = peers.empty() ? -1 : peers.front(),
               .hint = "Every rank must make this call in time. Is the peer alive?"}
      .with_text(peers.size() < 2 ? std::string() : list_of(peers));
}

[[nodiscard]] inline Status different_calls(int rank, int peer, std::size_t theirs, std::size_t ours) noexcept {
  return Error{.code = Errc::protocol_mismatch,
               .rank = rank,
               .peer = peer,
               .field = "exchanged bytes",
               .value = static_cast<std::int64_t>(theirs),
               .limit = static_cast<std::int64_t>(ours),
               .hint = "Every rank must make the same collective calls in the same order."};
}

}  // namespace mori_ep::comm
