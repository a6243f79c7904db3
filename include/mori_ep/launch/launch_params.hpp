// SPDX-License-Identifier: MIT
//! @file How many blocks and warps a phase runs with, and who said so.
#pragma once

#include "mori_ep/error.hpp"
#include "mori_ep/exec/concepts.hpp"

namespace mori_ep::launch {

//! @brief Launch parameters of one phase; 0 leaves a field to whoever is asked next (call, then config, then machine).
struct LaunchParams {
  int block_num = 0;
  int warp_per_block = 0;
  int rdma_block_num = 0;  //!< of them, that only relay between nodes; 0: all send first, then relay. InterNodeV1
};

//! @brief How many blocks one launch may have, by warps per block: what the machine keeps resident of the schedule's
//!        kernels, shared out among the launches that may be on one device at the same time. `usual_warps` is what they
//!        all have unless a call says otherwise: a narrower block may take the room of a usual one, so no more of them
//!        fit. A wider one may find no room between usual ones: configure as many warps as the widest call has.
struct LaunchLimits {
  exec::Residency residency;
  int sharers = 1;
  int most_blocks = 1 << 30;  //!< that the schedule has words for
  int default_blocks = 1, default_warps = 1;
  int usual_warps = 1;

  [[nodiscard]] constexpr int blocks(int warps) const noexcept {
    int const resident = residency.blocks[warps > usual_warps ? warps : usual_warps] / sharers;
    return resident < most_blocks ? resident : most_blocks;
  }
};

//! @brief The parameters in force: the call's, else the config's, else the machine's. Refuses what cannot be resident
//!        together, since every block of a schedule may wait for every other.
[[nodiscard]] inline Result<LaunchParams> resolve(const LaunchParams& call, const LaunchParams& config,
                                                  const LaunchLimits& limits) noexcept {
  LaunchParams p = call;
  if (p.block_num == 0) p.block_num = config.block_num;
  if (p.warp_per_block == 0) p.warp_per_block = config.warp_per_block;
  if (p.warp_per_block == 0) p.warp_per_block = limits.default_warps;
  if (p.warp_per_block < 0 || p.warp_per_block > limits.residency.max_warps)
    return Error{.code = Errc::invalid_argument,
                 .field = "warp_per_block",
                 .value = p.warp_per_block,
                 .limit = limits.residency.max_warps,
                 .hint = "Give 1 to the limit, or 0 for the machine's default."};
  int const most = limits.blocks(p.warp_per_block);
  if (p.block_num == 0) p.block_num = limits.default_blocks < most ? limits.default_blocks : most;
  if (p.block_num < 1 || p.block_num > most)
    return Error{.code = Errc::invalid_argument,
                 .field = "block_num",
                 .value = p.block_num,
                 .limit = most,
                 .hint =
                     "All blocks of a launch must be resident together, beside those of other ranks on the device and "
                     "of other buffer sets. "
                     "Give 1 to the limit, or 0 for the machine's default."};
  return p;
}

//! @brief How many of `blocks` blocks only relay: the call's, else the config's. At least one sends.
[[nodiscard]] inline Result<int> resolve_relays(int call, int config, int blocks, bool relays) noexcept {
  int const wanted = call != 0 ? call : config, most = relays ? blocks - 1 : 0;
  if (wanted >= 0 && wanted <= most) return wanted;
  return Error{.code = Errc::invalid_argument,
               .field = "rdma_block_num",
               .value = wanted,
               .limit = most,
               .hint = relays
                           ? "Give at most the limit, which is one less than block_num (left at 0, it is the machine's "
                             "default: set it), or 0 for blocks that send first and then relay."
                           : "Only schedules with relays (InterNodeV1) have blocks for them: give 0."};
}

}  // namespace mori_ep::launch
