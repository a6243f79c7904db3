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
#include "mori_ep/fabric/loopback/ledger.hpp"
#include "mori_ep/fabric/loopback/options.hpp"
#include "mori_ep/fabric/loopback/port.hpp"
#include "mori_ep/fabric/loopback/traffic.hpp"

namespace mori_ep::fabric {

//! @brief One rank's end of it. Models Fabric.
//!
//! Without faults and time model a request has arrived when post() returns: a copy by the posting thread, which shares
//! nothing with other ranks but the arenas, and allocates nothing. Else what is due moves in the endpoint's own post()
//! and poll(), so somebody must poll; what has completed and not arrived arrives when the endpoint goes. Every request is held against the arenas' bounds; one that leaves them is not
//! written, and its queue pair fails with an error that says why.
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
    for (int r = 0; r < comm.world(); ++r)
      if (!comm.in_process(r))
        return Error{.code = Errc::invalid_argument,
                     .rank = comm.rank(),
                     .field = "rank of another process",
                     .value = r,
                     .hint = "fabric::Loopback connects threads of one process. Use fabric::Verbs between processes."};
    auto const port = std::make_shared<loopback::Port>(arena, board, std::move(owner));
    Status here = options.check(comm.rank(), comm.world());
    if (here.ok()) here = check_arena(comm, arena);
    Entry const mine{&port, &options, Promise, here.error()};
    std::vector<Entry> entries(static_cast<std::size_t>(comm.world()));
    if (Status s = comm.all_gather(&mine, entries.data(), sizeof(mine)); !s.ok()) return s;
    std::vector<std::shared_ptr<loopback::Port>> ports;
    for (const Entry& entry : entries) ports.push_back(*entry.port);
    Status const agreed = agree(comm, entries);
    // The addresses above are of stack objects.
    if (Status s = comm.barrier(); !s.ok()) return s;
    if (!here.ok()) return here;
    if (!agreed.ok()) return agreed;
    return Loopback(comm, std::move(ports), options);
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
  //! What a rank brings to the join: addresses mean something to all, its own error to itself.
  struct Entry {
    const std::shared_ptr<loopback::Port>* port;
    const LoopbackOptions* options;
    Order order;
    Error error;
  };

  Loopback(const comm::Communicator& comm, std::vector<std::shared_ptr<loopback::Port>> ports,
           const LoopbackOptions& options)
      : rank_(comm.rank()), ports_(std::move(ports)), ledger_(rank_, comm.world(), options.queue_pairs, options.depth) {
    if (!options.prompt()) traffic_ = std::make_unique<loopback::Traffic>(rank_, Promise, options, ports_);
  }

  static Status check_arena(const comm::Communicator& comm, std::span<std::byte> arena) noexcept {
    auto const address = reinterpret_cast<std::uintptr_t>(arena.data());
    if (address % 16 == 0) return {};
    return Error{.code = Errc::invalid_argument,
                 .rank = comm.rank(),
                 .field = "arena's address modulo 16",
                 .value = static_cast<std::int64_t>(address % 16),
                 .limit = 0,
                 .hint = "Rows and signals of an aligned arena are aligned."};
  }

  //! The error of the lowest rank that has one, the same for all.
  static Status agree(const comm::Communicator& comm, std::span<const Entry> entries) noexcept {
    for (const Entry& entry : entries)
      if (entry.error.code != Errc::ok) return entry.error;
    auto const differs = [&](const char* field, std::int64_t value, std::int64_t limit) -> Status {
      return Error{.code = Errc::config_mismatch,
                   .rank = comm.rank(),
                   .peer = 0,
                   .field = field,
                   .value = value,
                   .limit = limit,
                   .hint = "Every rank must be given the fabric and options of rank 0."};
    };
    const Entry& first = entries.front();
    for (std::size_t r = 1; r < entries.size(); ++r) {
      const LoopbackOptions &mine = *entries[r].options, &its = *first.options;
      if (entries[r].order != first.order)
        return differs("order of the fabric", static_cast<int>(entries[r].order), static_cast<int>(first.order));
      if (mine.queue_pairs != its.queue_pairs) return differs("queue_pairs", mine.queue_pairs, its.queue_pairs);
      if (mine.depth != its.depth) return differs("depth", mine.depth, its.depth);
      if (mine != its) return differs("rank with other faults", static_cast<std::int64_t>(r), Error::kNoLimit);
    }
    return {};
  }

  void take(const WorkRequest& request, std::uint32_t queue_pair, loopback::Time now) noexcept {
    ledger_.take(request, queue_pair);
    bool const known = queue_pair != ledger_.nowhere();
    const loopback::Port& here = *ports_[static_cast<std::size_t>(rank_)];
    if (!known || !loopback::inside(request, here, *ports_[request.id.peer]))
      ledger_.fail(queue_pair, known ? loopback::bounds_error(request, here, *ports_[request.id.peer], rank_)
                                     : address_error(request.id));
    bool const failed = ledger_[queue_pair].error != nullptr;
    if (traffic_) return traffic_->take(request, queue_pair, ledger_, now);
    if (!failed) {
      const loopback::Port& there = *ports_[request.id.peer];
      if (request.id.operation != Operation::signal)
        loopback::arrive(there, request.remote_offset, here.arena.data() + request.local_offset, request.bytes);
      if (request.id.operation != Operation::put) loopback::arrive(there, request);
    }
    ledger_.end({.id = request.id, .queue_pair = queue_pair, .failed = failed, .since = now});
  }

  [[nodiscard]] Error address_error(const WorkId& id) const noexcept {
    bool const peer = id.peer >= world();
    return {.code = Errc::invalid_argument,
            .rank = rank_,
            .field = peer ? "peer" : "queue_pair",
            .value = peer ? id.peer : id.queue_pair,
            .limit = peer ? world() - 1 : queue_pairs() - 1,
            .expected = id.epoch,
            .hint = "A request names a rank of the world and one of its queue pairs."};
  }

  int rank_;
  std::vector<std::shared_ptr<loopback::Port>> ports_;
  loopback::Ledger ledger_;
  std::unique_ptr<loopback::Traffic> traffic_;  // where requests do not arrive at once
};
static_assert(Fabric<Loopback<Order::none>> && Fabric<Loopback<Order::in_queue_pair>>);

}  // namespace mori_ep::fabric
