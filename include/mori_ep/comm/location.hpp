// SPDX-License-Identifier: MIT
//! @file Where a rank is: its process, its host and its node.
#pragma once

#include <array>
#include <cstdint>
#include <fstream>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

#include "mori_ep/comm/hash.hpp"
#include "mori_ep/comm/random_bytes.hpp"
#include "mori_ep/error.hpp"

namespace mori_ep::comm {

//! @brief Three identities that are equal where two ranks share the thing. Plain data, compared only.
struct Location {
  std::uint64_t process = 0;
  std::uint64_t host = 0;  //!< of one running kernel and one network namespace: memory can be shared
  std::uint64_t node = 0;  //!< the host's, or of a name that was given

  static Location here(std::string_view node_id = {}) {
    Location location{.process = this_process(), .host = this_host()};
    location.node = node_id.empty() ? location.host : hash_text(node_id);
    return location;
  }

 private:
  static std::uint64_t this_host() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    std::array<char, 64> network{};
    auto const n = ::readlink("/proc/self/ns/net", network.data(), network.size());
    return hash_text({network.data(), n > 0 ? static_cast<std::size_t>(n) : 0}, hash_text(boot));
  }
  //! A number drawn once, and again in a child that a fork made.
  static std::uint64_t this_process() {
    static std::uint64_t drawn = 0;
    static ::pid_t by = 0;
    static std::mutex mutex;
    std::lock_guard const lock(mutex);
    if (by != ::getpid()) {
      // Without the system's, a number that no other process of this host has.
      if (!draw(std::as_writable_bytes(std::span(&drawn, 1))).ok())
        drawn = hash_text(std::to_string(::getpid()), this_host());
      by = ::getpid();
    }
    return drawn;
  }
};

//! @brief How many ranks a node has when nodes hold consecutive ranks, as many each but for the last, which may have
//!        fewer. `nodes`: an identity for each rank. `given`, where it is not 0, decides instead.
[[nodiscard]] inline Result<int> group_of(std::span<const std::uint64_t> nodes, int rank, int given) noexcept {
  auto const world = static_cast<int>(nodes.size());
  if (given < 0)
    return Error{.code = Errc::invalid_argument,
                 .rank = rank,
                 .field = "gpu_per_node",
                 .value = given,
                 .limit = 0,
                 .hint = "Give the ranks of a node, or 0 to group them by host."};
  if (given > 0) return given < world ? given : world;
  int size = 0;
  while (size < world && nodes[static_cast<std::size_t>(size)] == nodes[0]) ++size;
  for (int r = 0; r < world; ++r) {
    bool const same = r % size != 0 && nodes[static_cast<std::size_t>(r)] == nodes[static_cast<std::size_t>(r - 1)];
    bool const begins = r % size == 0;
    bool fresh = begins;
    for (int before = 0; begins && before < r; ++before)
      fresh = fresh && nodes[static_cast<std::size_t>(before)] != nodes[static_cast<std::size_t>(r)];
    if (!same && !fresh)
      return Error{.code = Errc::invalid_argument,
                   .rank = rank,
                   .peer = r,
                   .field = "ranks of the first node",
                   .value = size,
                   .hint =
                       "Nodes must hold consecutive ranks, as many each but for the last: order the ranks by host, "
                       "or give gpu_per_node (and MORI_NODE_ID where a host stands for several nodes)."};
  }
  return size;
}

[[nodiscard]] inline Result<int> group(std::span<const Location> locations, int rank, int given) {
  std::vector<std::uint64_t> nodes;
  for (const Location& l : locations) nodes.push_back(l.node);
  return group_of(nodes, rank, given);
}

}  // namespace mori_ep::comm
