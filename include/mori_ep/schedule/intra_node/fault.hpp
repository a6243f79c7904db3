// SPDX-License-Identifier: MIT
//! @file How a kernel that cannot go on says so: to its own host, and to every peer.
#pragma once

#include <cstdint>

#include "mori_ep/error.hpp"
#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/fabric/command_ring.hpp"
#include "mori_ep/routing/route.hpp"
#include "mori_ep/schedule/intra_node/layout.hpp"

namespace mori_ep::schedule::intra_node {

//! @brief A fault as peers see it: bit 63, the phase and the rank to blame.
MORI_EP_HD constexpr std::uint64_t fault_word(Phase phase, std::int32_t blamed) noexcept {
  return (std::uint64_t{1} << 63) | (std::uint64_t{static_cast<std::uint32_t>(phase)} << 32) |
         static_cast<std::uint32_t>(blamed);
}
MORI_EP_HD constexpr Phase fault_phase(std::uint64_t word) noexcept { return static_cast<Phase>((word >> 32) & 0xffu); }
MORI_EP_HD constexpr std::int32_t fault_blamed(std::uint64_t word) noexcept {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word));
}

//! @brief What a kernel needs to wait and to fail: one per launch, shared by its blocks.
//!
//! Kernels ask `gate` in the arena, which is near; what the host and peers read lies in the notice boards, host-visible
//! and perhaps far, and is touched by faults and by long waits only.
template <class PeerRef>
struct FaultPort {
  PeerRef peers;   //!< the arenas
  PeerRef boards;  //!< the notice boards
  comm::Region gate, record, notices;
  std::int64_t timeout_ns;
  std::uint64_t absent;  //!< ranks that are left out, as bits

  [[nodiscard]] MORI_EP_HD bool left_out(std::int32_t rank) const { return routing::is_absent(absent, rank); }

  //! @brief The word by which this rank tells `peer`: `words(at, from)` is where `from` tells `at`. Nobody tells this
  //!        rank for one that is left out, so it does that itself, and no wait need know who is missing.
  template <class Words>
  [[nodiscard]] MORI_EP_HD std::uint64_t* tell(std::int32_t peer, Words&& words) const {
    return left_out(peer) ? words(peers.rank, peer) : words(peer, peers.rank);
  }

  //! @brief Only a network reaches it, and it is to be reached.
  [[nodiscard]] MORI_EP_HD bool reaches_far(std::int32_t rank) const { return peers.is_far(rank) && !left_out(rank); }

  //! @brief A run of bytes, by its offsets in the two arenas.
  struct Run {
    std::size_t from = 0, there = 0, bytes = 0;
  };
  //! @brief Asks the network to put a run of bytes to far rank `to`, and to say so there; only to say so, when there are
  //!        none. Signals that lie side by side go by different queue pairs: a put_signal speaks for its own bytes and
  //!        needs no order with others, and what is written to one word always goes by one queue pair. Waits while there
  //!        is no room for it; records a fault when none comes. Called by a whole warp, after the bytes have been
  //!        flushed.
  template <exec::KernelContext Ctx>
  MORI_EP_BODY MORI_EP_HD void put_far(Ctx& ctx, std::int32_t to, const Run& run, std::size_t signal_offset,
                                       std::uint32_t epoch, Phase phase) const {
    bool const some = run.bytes != 0;
    fabric::Pushed const pushed = peers.ring.push(
        ctx,
        {.id = {.operation = some ? fabric::Operation::put_signal : fabric::Operation::signal,
                .queue_pair = static_cast<std::uint8_t>(
                    static_cast<std::uint32_t>(signal_offset / sizeof(std::uint64_t)) % peers.ring.queue_pairs),
                .peer = static_cast<std::uint16_t>(to),
                .epoch = epoch},
         .local_offset = some ? run.from : 0,
         .remote_offset = some ? run.there : 0,
         .bytes = run.bytes,
         .signal_offset = signal_offset,
         .signal = exec::signal_word(epoch, 0)},
        limits(-1));
    if (ctx.lane() == 0 && pushed.wait.end != exec::WaitEnd::arrived) report(ctx, pushed.wait, epoch, phase, to);
  }

  //! @brief Has an earlier launch of this rank failed? One that runs beside this one may or may not be seen.
  template <exec::KernelContext Ctx>
  [[nodiscard]] MORI_EP_HD bool failed(Ctx& ctx) const {
    return ctx.glance(&peers.template mine<FaultGate>(gate)->failed) != 0;
  }

  MORI_EP_HD exec::WaitLimits limits(std::int32_t peer) const {
    return {timeout_ns,
            &peers.template mine<FaultGate>(gate)->failed,
            boards.template mine<std::uint64_t>(notices),
            peers.world,
            peer,
            PeerRef::kFar};
  }

  //! @brief Records this rank's first fault and tells every peer, so that nobody waits a deadline for a rank that will
  //!        not come. Called by one lane. The record is written before either flag is published, hence whole when seen.
  template <exec::KernelContext Ctx>
  MORI_EP_COLD MORI_EP_HD void raise(Ctx ctx, Errc code, Phase phase, std::int32_t blamed, std::uint32_t expected,
                                     std::uint32_t seen, std::int64_t value = 0, std::int64_t limit = 0,
                                     Operand operand = Operand::none) const {
    if (!ctx.claim(&peers.template mine<FaultGate>(gate)->claimed)) return;
    auto* kept = boards.template mine<FaultRecord>(record);
    ctx.store(&kept->code, static_cast<std::uint32_t>(code));
    ctx.store(&kept->phase, static_cast<std::uint32_t>(phase));
    ctx.store(&kept->peer, blamed);
    ctx.store(&kept->expected, expected);
    ctx.store(&kept->seen, seen);
    ctx.store(&kept->value, value);
    ctx.store(&kept->limit, limit);
    ctx.store(&kept->operand, static_cast<std::uint32_t>(operand));
    ctx.publish(&kept->failed, std::uint32_t{1});
    ctx.publish(&peers.template mine<FaultGate>(gate)->failed, std::uint32_t{1});
    for (std::int32_t peer = 0; peer < peers.world; ++peer)
      if (!left_out(peer) && !peers.is_far(peer))
        ctx.publish(boards.template at<std::uint64_t>(peer, notices) + peers.rank, fault_word(phase, blamed));
  }

  //! @brief Waits for `peer`'s signal word of `epoch`; false, with the fault recorded, when it does not come.
  template <exec::KernelContext Ctx>
  [[nodiscard]] MORI_EP_HD bool await(Ctx& ctx, std::uint64_t* word, std::uint32_t epoch, Phase phase,
                                      std::int32_t peer, std::uint32_t* payload = nullptr,
                                      exec::WaitOrder order = exec::WaitOrder::acquire) const {
    exec::WaitResult const got = ctx.wait(word, epoch, limits(peer), order);
    if (payload != nullptr) *payload = exec::signal_payload(got.word);
    if (got.end == exec::WaitEnd::arrived) return true;
    report(ctx, got, epoch, phase, peer);
    return false;
  }

 private:
  //! Whoever does not come may itself be waiting: follows what the ranks say of their long waits, from `peer` on, to one
  //! that waits for nobody. Ranks that wait for each other in a ring leave the blame where it was. The words are hints
  //! for a message, set when half the time is over and read when all of it is: they order nothing, and where one is
  //! missed or stale the blame stops too soon, at a rank that was waited for.
  template <exec::KernelContext Ctx>
  [[nodiscard]] MORI_EP_HD std::int32_t blamed(Ctx& ctx, std::int32_t peer) const {
    std::int32_t at = peer;
    MORI_EP_ROLLED
    for (std::int32_t steps = 0; steps < peers.world && at != peers.rank && !peers.is_far(at); ++steps) {
      const std::uint64_t* waits = boards.template at<std::uint64_t>(at, notices) + peers.world;
      std::int32_t next = 0;
      while (next < peers.world && (next == at || left_out(next) || ctx.peek(waits + next) == 0)) ++next;
      if (next == peers.world) return at;
      at = next;
    }
    return peer;
  }

  template <exec::KernelContext Ctx>
  MORI_EP_COLD MORI_EP_HD void report(Ctx ctx, exec::WaitResult got, std::uint32_t epoch, Phase phase,
                                      std::int32_t peer) const {
    std::uint32_t const seen = exec::signal_epoch(got.word);
    if (got.end == exec::WaitEnd::expired) {
      raise(ctx, Errc::timeout, phase, blamed(ctx, peer), epoch, seen);
    } else if (got.end == exec::WaitEnd::out_of_step) {
      raise(ctx, Errc::out_of_step, phase, peer, epoch, seen);
    } else if (got.end == exec::WaitEnd::peer_fault) {
      std::uint64_t const told = ctx.peek(boards.template mine<std::uint64_t>(notices) + got.fault_rank);
      raise(ctx, Errc::peer_fault, phase, fault_blamed(told), epoch, seen, got.fault_rank);
    }
  }
};

}  // namespace mori_ep::schedule::intra_node
