// SPDX-License-Identifier: MIT
//! @file fabric::DeviceLoopback: a network inside one process that reaches what only a device reaches.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/error.hpp"
#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/loopback/errand.hpp"
#include "mori_ep/fabric/loopback/join.hpp"
#include "mori_ep/fabric/loopback/ledger.hpp"
#include "mori_ep/fabric/loopback/options.hpp"
#include "mori_ep/fabric/loopback/port.hpp"

namespace mori_ep::fabric {

//! @brief One rank's end of it. Models Fabric. Its copies are made by kernels that the endpoint launches, a launch for
//!        each post(), so arenas may lie in a device's own memory; what a network of several nodes costs on one machine
//!        is measured with it. It has no faults, delays or time model: fabric::Loopback has.
//!
//! The ranks' own kernels wait for what these bring:
//! Room      give the operators a block_num that leaves a quarter of a device's multiprocessors free.
//! Queues    endpoints of a device share kStreams streams; load kernels early and give streams queues of their own, as
//!           for ranks that share a device (CUDA_MODULE_LOADING=EAGER, CUDA_DEVICE_MAX_CONNECTIONS=32).
//! Ends      free and allocate memory of the device, or pinned, only when all ranks' work has ended: what frees it waits
//!           for the device, and the runtime holds back launches meanwhile, these among them. What an endpoint has is
//!           freed with the last rank's.
template <exec::ExecPolicy Exec>
class DeviceLoopback {
 public:
  static constexpr const char* kName = "device loopback";
  static constexpr Order kOrder = Order::none;  // the blocks of a launch do not wait for each other
  static constexpr bool kHostCopies = false;
  static constexpr int kStreams = 8;  // with those of sixteen ranks fewer than a device's 32 queues
  using Options = LoopbackOptions;

  //! @brief Collective among the ranks of `comm`, which are threads of this process, with their devices current.
  //!        `arena`, at a multiple of 16 bytes, and `board` are memory that kernels read and write; `owner` keeps them
  //!        until all ranks' endpoints are gone.
  //! Errors: as Loopback's; invalid_config for options that only fabric::Loopback has; out_of_memory; invalid_argument
  //! naming a rank whose device this one's does not reach.
  static Result<DeviceLoopback> connect(const comm::Communicator& comm, std::span<std::byte> arena,
                                        std::span<std::byte> board, std::shared_ptr<const void> owner,
                                        const LoopbackOptions& options = {}) {
    Status here = options.check(comm.rank(), comm.world());
    std::unique_ptr<State> state;
    if (here.ok() && !options.prompt())
      here = Error{.code = Errc::invalid_config,
                   .rank = comm.rank(),
                   .field = "options of faults, delays and speed",
                   .value = 1,
                   .limit = 0,
                   .hint = "fabric::DeviceLoopback has queue_pairs and depth alone. Use fabric::Loopback."};
    if (here.ok()) {
      state = std::make_unique<State>(comm.rank(), comm.world(), options);
      if (state->words() == nullptr)
        here = Error{.code = Errc::out_of_memory,
                     .rank = comm.rank(),
                     .field = "bytes for the ends of requests",
                     .value = static_cast<std::int64_t>(state->bytes()),
                     .hint = "Free pinned memory, or give a smaller depth."};
    }
    auto ports = loopback::join(comm, std::make_shared<loopback::Port>(arena, board, kept(std::move(owner), state)),
                                kOrder, options, std::move(here));
    if (!ports.ok()) return ports.status();
    state->ports = std::move(*ports);
    if (Status s = check_reach(comm); !s.ok()) return s;
    DeviceLoopback end;
    end.state_ = std::move(state);
    return Result<DeviceLoopback>(std::move(end));
  }

  [[nodiscard]] int rank() const noexcept { return state_->rank; }
  [[nodiscard]] int world() const noexcept { return static_cast<int>(state_->ports.size()); }
  [[nodiscard]] int queue_pairs() const noexcept { return state_->ledger.per_peer(); }
  [[nodiscard]] int depth() const noexcept { return static_cast<int>(state_->ledger.depth()); }
  [[nodiscard]] const Counters& counters(int peer) const noexcept { return state_->ledger.counters(peer); }

  std::size_t post(std::span<const WorkRequest> requests) noexcept {
    if (requests.empty()) return 0;
    State& s = *state_;
    std::uint32_t const queue_pair = s.ledger.index_of(requests.front().id);
    auto const now = std::chrono::steady_clock::now();
    std::size_t const taken = std::min<std::size_t>(s.ledger.depth() - s.ledger[queue_pair].held, requests.size());
    if (taken < requests.size()) s.ledger.refuse(queue_pair);
    loopback::CarryKernel kernel;
    int built = 0;
    for (const WorkRequest& request : requests.first(taken)) {
      s.ledger.take(request, queue_pair);
      bool const goes = may_go(request, queue_pair);
      s.sent[s.next % s.sent.size()] =
          loopback::Ended{.id = request.id, .queue_pair = queue_pair, .failed = !goes, .since = now};
      if (goes)
        kernel.errands[built++] = errand_of(request);
      else
        s.tell_end(s.next);
      ++s.next;
      if (built == loopback::CarryKernel::kMost) launch(kernel, std::exchange(built, 0));
    }
    if (built != 0) launch(kernel, built);
    return taken;
  }

  std::size_t poll(std::span<Completion> into) noexcept {
    State& s = *state_;
    // In the order of their posts: a stream's launches end in theirs, and the blocks of a launch nearly so.
    for (; s.first != s.next && s.has_ended(s.first); ++s.first) s.ledger.end(s.sent[s.first % s.sent.size()]);
    if (!s.ledger.waiting()) return 0;
    return s.ledger.poll(into, std::chrono::steady_clock::now(), [](const loopback::Ended&) {});
  }

 private:
  using Stream = typename Exec::Stream;
  //! A stream that threads share.
  struct Shared {
    std::mutex mutex;
    Stream stream;
  };

  struct State {
    State(int rank_here, int world, const LoopbackOptions& options)
        : rank(rank_here),
          ordinal(Exec::ordinal()),
          ledger(rank_here, world, options.queue_pairs, options.depth),
          sent(static_cast<std::size_t>((world * options.queue_pairs + 1) * options.depth)),
          memory(std::make_shared<comm::Arena<Exec>>(bytes(), comm::Place::board)),
          shared(stream_of(ordinal, rank_here % kStreams)) {
      (void)Exec::template prepare<loopback::CarryKernel>();  // not while ranks' kernels wait for its first launch
    }
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() {
      if (first != next) (void)Exec::synchronize(shared->stream);  // arenas and words outlive what is under way
    }
    [[nodiscard]] std::size_t bytes() const noexcept { return sent.size() * sizeof(std::uint64_t); }
    [[nodiscard]] std::uint64_t* words() const noexcept { return reinterpret_cast<std::uint64_t*>(memory->data()); }
    [[nodiscard]] std::uint64_t* word(std::uint64_t request) const noexcept { return words() + request % sent.size(); }
    //! Acquires what CarryKernel released at its end: the request's source may be written again.
    [[nodiscard]] bool has_ended(std::uint64_t request) const noexcept {
      return std::atomic_ref<std::uint64_t>(*word(request)).load(std::memory_order_acquire) == request + 1;
    }
    //! Of a request that no kernel carries. The thread that polls it tells itself: nothing to order.
    void tell_end(std::uint64_t request) const noexcept {
      std::atomic_ref<std::uint64_t>(*word(request)).store(request + 1, std::memory_order_relaxed);
    }

    int rank, ordinal;
    std::vector<std::shared_ptr<loopback::Port>> ports;
    loopback::Ledger ledger;
    std::vector<loopback::Ended> sent;          // a ring: each request that a queue pair holds has a place
    std::shared_ptr<comm::Arena<Exec>> memory;  // a word for each of these, which a kernel writes at its end
    std::uint64_t first = 0, next = 0;          // requests ever: ended, and sent
    std::shared_ptr<Shared> shared;
  };

  //! What a rank's port keeps for all.
  static std::shared_ptr<const void> kept(std::shared_ptr<const void> owner, const std::unique_ptr<State>& state) {
    using Both = std::array<std::shared_ptr<const void>, 2>;
    return std::make_shared<Both>(Both{std::move(owner), state == nullptr ? nullptr : state->memory});
  }

  static std::shared_ptr<Shared> stream_of(int ordinal, int index) {
    static std::mutex mutex;
    static std::weak_ptr<Shared> streams[64][kStreams];
    std::lock_guard const lock(mutex);
    std::weak_ptr<Shared>& kept = streams[ordinal % 64][index];
    std::shared_ptr<Shared> shared = kept.lock();
    if (shared == nullptr) kept = shared = std::make_shared<Shared>();
    return shared;
  }

  //! Says so to the queue pair, if not.
  bool may_go(const WorkRequest& request, std::uint32_t queue_pair) noexcept {
    loopback::Ledger& ledger = state_->ledger;
    if (auto const error = loopback::refusal(request, state_->ports, rank(), queue_pairs()))
      ledger.fail(queue_pair, *error);
    return ledger[queue_pair].error == nullptr;
  }

  [[nodiscard]] loopback::Errand errand_of(const WorkRequest& request) const noexcept {
    const State& s = *state_;
    const loopback::Port &here = *s.ports[static_cast<std::size_t>(s.rank)], &there = *s.ports[request.id.peer];
    loopback::Errand errand{.ended = s.word(s.next), .end = s.next + 1};
    if (request.id.operation != Operation::signal) {
      errand.to = there.arena.data() + request.remote_offset;
      errand.from = here.arena.data() + request.local_offset;
      errand.bytes = request.bytes;
    }
    if (request.id.operation != Operation::put) {
      errand.word = reinterpret_cast<std::uint64_t*>(there.words_for(request).data() + request.signal_offset);
      errand.signal = request.signal;
    }
    return errand;
  }

  void launch(const loopback::CarryKernel& kernel, int errands) noexcept {
    State& s = *state_;
    constexpr int kWarps = 16;
    Status launched = Exec::use_device(s.ordinal);  // the proxy's thread begins on device 0
    if (launched.ok()) {
      std::lock_guard const lock(s.shared->mutex);
      launched =
          Exec::launch({.blocks = errands, .warps = std::min(kWarps, Exec::default_warps())}, kernel, s.shared->stream);
    }
    if (!launched.ok()) give_up(launched.error());
  }
  //! A launch failed: of this one's requests nothing moves, and a kernel before it may have died on the way. What has
  //! not ended once the stream has come to its end has failed.
  void give_up(Error error) noexcept {
    State& s = *state_;
    (void)Exec::synchronize(s.shared->stream);
    error.rank = s.rank;
    for (std::uint64_t request = s.first; request != s.next; ++request) {
      if (s.has_ended(request)) continue;
      loopback::Ended& ended = s.sent[request % s.sent.size()];
      error.peer = ended.id.peer;
      s.ledger.fail(ended.queue_pair, error);
      ended.failed = true;
      s.tell_end(request);
    }
  }

  static Status check_reach(const comm::Communicator& comm) noexcept {
    struct Device {
      int ordinal;
      std::uint64_t reachable;
    };
    Device const mine{Exec::ordinal(), Exec::reachable()};
    std::vector<Device> all(static_cast<std::size_t>(comm.world()));
    if (Status s = comm.all_gather(&mine, all.data(), sizeof(mine)); !s.ok()) return s;
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      for (std::size_t peer = 0; peer < all.size(); ++peer)
        if ((all[rank].reachable >> (all[peer].ordinal % 64) & 1) == 0)
          return Error{
              .code = Errc::invalid_argument,
              .phase = Phase::create,
              .rank = static_cast<int>(rank),
              .peer = static_cast<int>(peer),
              .field = "peer access to device",
              .value = all[peer].ordinal,
              .hint = "Kernels carry from each rank's arena to every other's. Use devices that reach each other."};
    return {};
  }

  DeviceLoopback() = default;
  std::unique_ptr<State> state_;
};

}  // namespace mori_ep::fabric
