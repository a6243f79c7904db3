// SPDX-License-Identifier: MIT
//! @file What a notice board says of faults, in words for the host.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "mori_ep/error.hpp"
#include "mori_ep/schedule/intra_node/fault.hpp"
#include "mori_ep/schedule/intra_node/layout.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief What rank `rank`'s kernels met, or else what a peer has told of its own (`notices`, by peer); ok when nothing.
//!        `shares_device`: do other ranks' launches have to be on its device at the same time?
[[nodiscard]] inline Status told_fault(FaultRecord& record, std::span<std::uint64_t> notices, int rank,
                                       bool shares_device) noexcept {
  Error error{.rank = rank, .hint = "The operator has stopped. Bring every rank to recover()."};
  if (std::atomic_ref(record.failed).load(std::memory_order_acquire) != 0) {
    error.code = static_cast<Errc>(record.code);
    error.phase = static_cast<Phase>(record.phase);
    error.peer = record.peer;
    error.expected = record.expected;
    error.seen = record.seen;
    if (error.code == Errc::timeout && shares_device)
      error.hint =
          "The operator has stopped. Bring every rank to recover(). Ranks that share a GPU need a hardware queue "
          "each: on NVIDIA, CUDA_DEVICE_MAX_CONNECTIONS=32 and CUDA_MODULE_LOADING=EAGER in the environment, and "
          "streams whose first launches did not coincide (exec::Cuda::Stream).";
    if (error.code == Errc::peer_fault) {
      error.value = record.value;
    } else if (error.code == Errc::invalid_argument) {
      error.field = name(static_cast<Operand>(record.operand));
      error.value = record.value;
      error.limit = record.limit;
      error.hint = static_cast<Operand>(record.operand) == Operand::token_count
                       ? "token_count is 0 to the input's rows. Mend the call, then bring every rank to recover()."
                       : "Combine takes every row that dispatch delivered (recv_count), and their weights when "
                         "weights_output is asked for. Mend the call, then bring every rank to recover().";
    }
    return error;
  }
  for (std::size_t peer = 0; peer < notices.size(); ++peer) {
    std::uint64_t const told = std::atomic_ref(notices[peer]).load(std::memory_order_acquire);
    if (told == 0) continue;
    error.code = Errc::peer_fault;
    error.phase = fault_phase(told);
    error.peer = fault_blamed(told);
    error.value = static_cast<std::int64_t>(peer);
    return error;
  }
  return {};
}

}  // namespace mori_ep::schedule::intra_node
