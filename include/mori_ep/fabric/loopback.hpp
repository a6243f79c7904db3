// SPDX-License-Identifier: MIT
//! @file fabric::Loopback: a network inside one process, with the faults of real ones from a seed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/error.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/loopback/join.hpp"
#include "mori_ep/fabric/loopback/ledger.hpp"
#include "mori_ep/fabric/loopback/options.hpp"
#include "mori_ep/fabric/loopback/port.hpp"
#include "mori_ep/fabric/loopback/traffic.hpp"

namespace mori_ep::fabric {

//! @brief One rank's end of it. Models Fabric.
//!
//! Without faults and time model a request has arrived when post() returns: a copy by the posting thread, which shares
//! nothing with other ranks but the arenas, and allocates nothing. Else what is due moves in the endpoint's own post()
//! and poll(), so somebody must poll; what has completed and not arrived arrives when the endpoint goes. Every request
//! is held against the arenas' bounds; one that leaves them is not written, and its queue pair fails with an error that
//! says why.
template <Order Promise = Order::in_queue_pair>
class Loopback {
 public:
  static constexpr const char* kName = "loopback";
  static constexpr Order kOrder = Promise;
  using Options = LoopbackOptions;
  static constexpr bool kHostCopies = true;

  //! @brief Collective among the ranks of `comm`, which are threads of this process. `arena`, at a multiple of 16 bytes,
  //!        and `board` are memory that threads read and write; `owner` keeps them until all ranks' endpoints are gone.
  //! Errors: invalid_argument naming a rank of another process; invalid_config, or config_mismatch with rank 0, of one
  //! rank and then of all; as Communicator's calls.
  static Result<Loopback> connect(const comm::Communicator& comm, std::span<std::byte> arena,
                                  std::span<std::byte> board, std::shared_ptr<const void> owner,
                                  const LoopbackOptions& options = {}) noexcept {
    auto ports =
        loopback::join(comm, std::make_shared<loopback::Port>(arena, board, std::move(owner)), Promise, options);
    if (!ports.ok()) return ports.status();
    return Loopback(comm, std::move(*ports), options);
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world() const noexcept { return static_cast<int>(ports_.size()); }
  [[nodiscard]] int queue_pairs() const noexcept { return ledger_.per_peer(); }
  [[nodiscard]] int depth() const noexcept { return static_cast<int>(ledger_.depth()); }
  [[nodiscard]] const Counters& counters(int peer) const noexcept { return ledger_.counters(peer); }

  std::size_t post(std::span<const WorkRequest> requests) noexcept {
    if (requests.empty()) return 0;
    std::uint32_t const queue_pair = ledger_.index_of(requests.front().id);
    auto const now = std::chrono::steady_clock::now();
    if (traffic_) traffic_->advance(ledger_, now);
    std::size_t const room = ledger_.depth() - ledger_[queue_pair].held;
    std::size_t taken = room < requests.size() ? room : requests.size();
    if (traffic_ && taken != 0) taken = traffic_->takes(taken);
    if (taken < requests.size()) ledger_.refuse(queue_pair);
    for (const WorkRequest& request : requests.first(taken)) take(request, queue_pair, now);
    return taken;
  }

  std::size_t poll(std::span<Completion> into) noexcept {
    if (!traffic_ && !ledger_.waiting()) return 0;
    auto const now = std::chrono::steady_clock::now();
    if (traffic_) traffic_->advance(ledger_, now);
    return ledger_.poll(into, now, [&](const loopback::Ended& ended) {
      if (traffic_) traffic_->seen(ended, ledger_[ended.queue_pair], now);
    });
  }

 private:
  Loopback(const comm::Communicator& comm, std::vector<std::shared_ptr<loopback::Port>> ports,
           const LoopbackOptions& options)
      : rank_(comm.rank()), ports_(std::move(ports)), ledger_(rank_, comm.world(), options.queue_pairs, options.depth) {
    if (!options.prompt()) traffic_ = std::make_unique<loopback::Traffic>(rank_, Promise, options, ports_);
  }

  void take(const WorkRequest& request, std::uint32_t queue_pair, loopback::Time now) noexcept {
    ledger_.take(request, queue_pair);
    if (auto const error = loopback::refusal(request, ports_, rank_, queue_pairs())) ledger_.fail(queue_pair, *error);
    bool const failed = ledger_[queue_pair].error != nullptr;
    if (traffic_) return traffic_->take(request, queue_pair, ledger_, now);
    if (!failed) {
      const loopback::Port& there = *ports_[request.id.peer];
      if (request.id.operation != Operation::signal)
        loopback::arrive(there, request.remote_offset,
                         ports_[static_cast<std::size_t>(rank_)]->arena.data() + request.local_offset, request.bytes);
      if (request.id.operation != Operation::put) loopback::arrive(there, request);
    }
    ledger_.end({.id = request.id, .queue_pair = queue_pair, .failed = failed, .since = now});
  }

  int rank_;
  std::vector<std::shared_ptr<loopback::Port>> ports_;
  loopback::Ledger ledger_;
  std::unique_ptr<loopback::Traffic> traffic_;  // where requests do not arrive at once
};
static_assert(Fabric<Loopback<Order::none>> && Fabric<Loopback<Order::in_queue_pair>>);

}  // namespace mori_ep::fabric
