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
};

//! @brief The parameters in force: the call's, else the config's, else the machine's. Refuses what cannot be resident
//!        together, since every block of a schedule may wait for every other.
template <exec::ExecPolicy Exec>
[[nodiscard]] Result<LaunchParams> resolve(const LaunchParams& call, const LaunchParams& config, int ranks_in_process,
                                           Errc code) noexcept {
  LaunchParams p = call;
  if (p.block_num == 0) p.block_num = config.block_num;
  if (p.warp_per_block == 0) p.warp_per_block = config.warp_per_block;
  if (p.warp_per_block == 0) p.warp_per_block = Exec::default_warps();
  int const max_warps = Exec::max_resident(1);
  if (p.warp_per_block < 0 || p.warp_per_block > max_warps)
    return Error{.code = code,
                 .field = "warp_per_block",
                 .value = p.warp_per_block,
                 .limit = max_warps,
                 .hint = "Give 1 to the limit, or 0 for the machine's default."};
  int const resident = Exec::max_resident(p.warp_per_block);
  if (p.block_num == 0)
    p.block_num = Exec::default_blocks(ranks_in_process) < resident ? Exec::default_blocks(ranks_in_process) : resident;
  if (p.block_num < 0 || p.block_num > resident)
    return Error{
        .code = code,
        .field = "block_num",
        .value = p.block_num,
        .limit = resident,
        .hint =
            "All blocks of a launch must be resident together. Give 1 to the limit, or 0 for the machine's default."};
  return p;
}

}  // namespace mori_ep::launch
