// SPDX-License-Identifier: MIT
//! @file transport::Xgmi: peers' memory is reached by load and store (XGMI, NVLink, shared memory).
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/comm/symmetric_layout.hpp"
#include "mori_ep/exec/attributes.hpp"
#include "mori_ep/fabric/counters.hpp"
#include "mori_ep/transport/ends.hpp"

namespace mori_ep::transport {

//! @brief A transport has a kernel-side half, `Ref`: trivially copyable, knows its rank and world, and which ranks are
//!        far (`kFar`: some may be), and a host-side half, `Link`.
template <class T>
concept TransportPolicy = requires {
  typename T::Ref;
  typename T::Options;
  { T::Ref::kFar } -> std::convertible_to<bool>;
  { T::kName } -> std::convertible_to<const char*>;
  { T::kPlace } -> std::convertible_to<comm::Place>;  // of an arena that the caller does not bring
  requires std::is_trivially_copyable_v<typename T::Ref>;
};

//! @brief A transport through which a kernel loads from and stores to any peer's arena.
template <class T>
concept HasPeerAccess =
    TransportPolicy<T> && !T::Ref::kFar && requires(const typename T::Ref ref, comm::Region region) {
  { ref.template at<std::byte>(0, region) } -> std::same_as<std::byte*>;
};

//! @brief Load and store to peers' memory.
struct Xgmi {
  static constexpr const char* kName = "xgmi";
  static constexpr comm::Place kPlace = comm::Place::device;
  struct Options {};
  struct Nothing {};

  //! @brief What a kernel needs: the table of arena bases, in this rank's own memory, and this rank's own base.
  struct Ref {
    static constexpr bool kFar = false;     //!< are there ranks that only a network reaches?
    static constexpr bool kRelays = false;  //!< does one rank of a node receive for all of it?

    std::byte* const* bases = nullptr;  //!< [world]
    std::byte* own = nullptr;
    std::int32_t rank = 0;
    std::int32_t world = 1;

    [[nodiscard]] static MORI_EP_HD constexpr bool is_far(int) noexcept { return false; }
    //! @brief The same, with the table copied to `near` [world] by the caller: a block's scratch answers sooner.
    [[nodiscard]] MORI_EP_HD Ref with_table(std::byte* const* near) const noexcept { return {near, own, rank, world}; }
    //! @brief The first T of `region` in `peer`'s arena.
    template <class T>
    [[nodiscard]] MORI_EP_HD T* at(int peer, comm::Region region) const noexcept {
      return region.in<T>(bases[peer]);
    }
    template <class T>
    [[nodiscard]] MORI_EP_HD T* mine(comm::Region region) const noexcept {
      return region.in<T>(own);
    }
  };

  //! @brief Nothing to be done on the host.
  template <class Exec>
  struct Link {
    static Result<Link> connect(const comm::Communicator&, const Ends&, const Options&) noexcept { return Link{}; }
    [[nodiscard]] Nothing ring() const noexcept { return {}; }
    [[nodiscard]] Status status() const noexcept { return {}; }
    [[nodiscard]] fabric::Traffic traffic(int) const noexcept { return {}; }
  };

  [[nodiscard]] static constexpr NearRanks near(int, int world, int) noexcept { return {0, world}; }
  [[nodiscard]] static Ref ref(std::byte* const* bases, std::byte* own, const comm::Communicator& comm,
                               Nothing) noexcept {
    return {bases, own, comm.rank(), comm.world()};
  }
};
static_assert(HasPeerAccess<Xgmi>);

}  // namespace mori_ep::transport
