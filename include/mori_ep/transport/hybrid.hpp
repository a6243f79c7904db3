// SPDX-License-Identifier: MIT
//! @file transport::Hybrid and transport::Rdma: a network between nodes; inside a node load and store, or the network too.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include <unistd.h>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/comm/symmetric_layout.hpp"
#include "mori_ep/error.hpp"
#include "mori_ep/exec/attributes.hpp"
#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/exec/signal_word.hpp"
#include "mori_ep/fabric/command_ring.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/proxy.hpp"
#include "mori_ep/transport/ends.hpp"

namespace mori_ep::transport {

//! @brief A kernel's view of peers some of which only a network reaches. What is asked of the network goes to `ring`.
struct NetworkedRef {
  static constexpr bool kFar = true;
  static constexpr bool kRelays = false;

  std::byte* const* bases = nullptr;  //!< [world]; a near rank's means something
  std::byte* own = nullptr;
  std::int32_t rank = 0;
  std::int32_t world = 1;
  NearRanks near;
  fabric::CommandRingRef ring;

  [[nodiscard]] MORI_EP_HD bool is_far(int peer) const noexcept { return !near.has(peer); }
  [[nodiscard]] MORI_EP_HD NetworkedRef with_table(std::byte* const* table) const noexcept {
    NetworkedRef ref = *this;
    ref.bases = table;
    return ref;
  }
  template <class T>
  [[nodiscard]] MORI_EP_HD T* at(int peer, comm::Region region) const noexcept {
    return region.in<T>(bases[peer]);
  }
  template <class T>
  [[nodiscard]] MORI_EP_HD T* mine(comm::Region region) const noexcept {
    return region.in<T>(own);
  }
};

namespace detail {

//! @brief One rank's end of the network: an endpoint, the ring of its kernels' commands, and the thread between them.
template <class F, class Exec>
class NetworkLink {
 public:
  using Options = typename F::Options;

  //! @brief Collective. An error of one rank is the error of all.
  static Result<NetworkLink> connect(const comm::Communicator& comm, Ends ends, const Options& options) {
    auto fabric = connect_fabric(comm, ends, options);
    if (!fabric.ok()) return fabric.status();
    auto ring = fabric::CommandRing<Exec>::create(kCommands);
    auto host_ring = fabric::CommandRing<exec::Host>::create(
        static_cast<std::int64_t>(std::bit_ceil(static_cast<unsigned>(comm.world()))));
    // Texts of another process mean nothing here: each rank tells what is in its way, and all find words for it.
    struct Obstacle {
      Errc code = Errc::ok;
      std::int64_t value = 0;
      bool out_of_reach = false;  // the arena is; else there is no ring
    };
    Error const no_ring = ring.ok() ? host_ring.error() : ring.error();
    Obstacle here{no_ring.code, no_ring.value};
    if (F::kHostCopies && !Exec::host_reaches(ends.arena.data()))
      here = {Errc::invalid_argument, std::ssize(ends.arena), true};
    std::vector<Obstacle> all(static_cast<std::size_t>(comm.world()));
    if (Status s = comm.all_gather(&here, all.data(), sizeof(here)); !s.ok()) return s;
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      Error error{.code = all[rank].code,
                  .phase = Phase::create,
                  .rank = static_cast<int>(rank),
                  .field = "command ring",
                  .value = all[rank].value,
                  .hint = "That rank has no memory for it: free some."};
      if (error.code == Errc::ok) continue;
      if (all[rank].out_of_reach) {
        error.field = "bytes of a device's arena";
        error.limit = 0;
        error.hint =
            "This fabric copies by threads of the host. Bring memory that they reach, as Exec::allocate_board() gives, "
            "or none.";
      }
      return error;
    }
    ends.keep(ring->memory());
    NetworkLink link;
    link.state_ = std::make_unique<State>(std::move(*fabric), std::move(*ring), std::move(*host_ring), std::move(ends));
    return Result<NetworkLink>(std::move(link));
  }

  [[nodiscard]] fabric::CommandRingRef ring() const noexcept {
    fabric::CommandRingRef ref = state_->ring.ref();
    ref.queue_pairs = static_cast<std::uint32_t>(state_->fabric.queue_pairs());
    return ref;
  }
  //! @brief What this rank has asked for `peer`. Any thread asks, at any time.
  [[nodiscard]] fabric::Traffic traffic(int peer) const noexcept { return state_->fabric.counters(peer).now(); }
  //! @brief The first error that the network has had with any peer. Any thread asks.
  [[nodiscard]] Status status() const noexcept {
    for (int peer = 0; peer < state_->fabric.world(); ++peer)
      if (Status s = state_->proxy.status(peer); !s.ok()) return s;
    return {};
  }

 private:
  static constexpr std::int64_t kCommands = 1 << 10;

  //! A fabric that registers memory with a card is told how the card finds a device's.
  static Result<F> connect_fabric(const comm::Communicator& comm, const Ends& ends, const Options& options) {
    if constexpr (requires(exec::Dmabuf of_arena) {
                    F::connect(comm, ends.arena, ends.board, ends.owner, options, of_arena);
                  }) {
      exec::Dmabuf const of_arena = Exec::dmabuf(ends.arena.data(), ends.arena.size());
      auto fabric = F::connect(comm, ends.arena, ends.board, ends.owner, options, of_arena);
      if (of_arena.fd >= 0) ::close(of_arena.fd);  // what is registered keeps the memory
      return fabric;
    } else {
      return F::connect(comm, ends.arena, ends.board, ends.owner, options);
    }
  }

  struct State {
    F fabric;
    fabric::CommandRing<Exec> ring;
    fabric::CommandRing<exec::Host> host_ring;
    fabric::CommandWriter host;
    Ends ends;
    bool told = false;
    fabric::Proxy<F> proxy;  // last: it ends first

    State(F&& f, fabric::CommandRing<Exec>&& kernels, fabric::CommandRing<exec::Host>&& own, Ends&& e)
        : fabric(std::move(f)),
          ring(std::move(kernels)),
          host_ring(std::move(own)),
          host(host_ring.writer()),
          ends(std::move(e)),
          proxy(fabric, {ring.reader(), host_ring.reader()},
                {.on_fault = [this](const fabric::Fault& fault) { tell_far(ends.lost(fault.id.peer)); },
                 .each_round = [this] { tell_far(told ? 0 : ends.fault()); }}) {}

    //! Once, what has become of this rank: kernels tell near ranks themselves. The ring has room for every rank.
    void tell_far(std::uint64_t fault) {
      if (told || fault == 0) return;
      told = true;
      for (int peer = 0; peer < fabric.world(); ++peer)
        if (!ends.near.has(peer))
          (void)host.push(
              {.id = {.operation = fabric::Operation::signal,
                      .peer = static_cast<std::uint16_t>(peer),
                      .epoch = exec::signal_epoch(fault)},
               .signal_offset = ends.notices + static_cast<std::size_t>(fabric.rank()) * sizeof(std::uint64_t),
               .signal = fault,
               .to_board = true});
    }
  };
  std::unique_ptr<State> state_;
};

//! @brief What Hybrid and Rdma share.
template <class F, bool kNodeIsNear>
struct Networked {
  static_assert(fabric::Fabric<F>,
                "transport::Hybrid and Rdma: the parameter must be a fabric. Use fabric::Verbs or fabric::Loopback<>.");
  using Fabric = F;
  static constexpr comm::Place kPlace = F::kHostCopies ? comm::Place::board : comm::Place::device;
  using Options = typename F::Options;
  using Ref = NetworkedRef;
  template <class Exec>
  using Link = NetworkLink<F, Exec>;

  //! @brief The ranks that load and store reach from `rank`.
  [[nodiscard]] static constexpr NearRanks near(int rank, int world, int gpu_per_node) noexcept {
    if (!kNodeIsNear) return {rank, rank + 1};
    int const begin = rank / gpu_per_node * gpu_per_node;
    return {begin, begin + gpu_per_node < world ? begin + gpu_per_node : world};
  }
  [[nodiscard]] static Ref ref(std::byte* const* bases, std::byte* own, const comm::Communicator& comm,
                               const fabric::CommandRingRef& ring) noexcept {
    return {bases, own, comm.rank(), comm.world(), near(comm.rank(), comm.world(), comm.gpu_per_node()), ring};
  }
};

}  // namespace detail

//! @brief Load and store inside a node, the network between nodes; nodes are what the Communicator groups.
template <class F>
struct Hybrid : detail::Networked<F, true> {
  static constexpr const char* kName = "hybrid";
};
//! @brief The network to every other rank, also inside a node.
template <class F>
struct Rdma : detail::Networked<F, false> {
  static constexpr const char* kName = "rdma";
};

}  // namespace mori_ep::transport
