// SPDX-License-Identifier: MIT
//! @file What a rank brings to fabric::Verbs: its arena, and what the environment or the caller chooses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "mori_ep/env.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/verbs/trouble.hpp"

namespace mori_ep::fabric::verbs {

//! @brief The memory that peers write to and puts read from. The caller's: it outlives the fabric.
struct Arena {
  void* base = nullptr;
  std::size_t bytes = 0;
  int dmabuf_fd = -1;               //!< of a GPU's memory, where its driver gives one
  std::uint64_t dmabuf_offset = 0;  //!< of `base` in that
  void* board = nullptr;            //!< memory of the host for signals that its threads read (WorkRequest::to_board)
  std::size_t board_bytes = 0;
};

struct Options {
  static constexpr int kMostDepth = 4095;
  //! 4.096 us * 2^17, half a second: less, and a busy receiver looks like a lost packet.
  static constexpr int kLeastTimeout = 17;

  NameFilter devices;
  std::optional<int> gid_index, traffic_class, service_level;
  int num_qp_per_pe = 4;
  int depth = 128;                  //!< requests that a queue pair holds; fewer where the device holds fewer
  int ack_timeout = kLeastTimeout;  //!< 4.096 us * 2^n until a packet is sent again, which is done six times

  Options() = default;
  explicit Options(const Environment& environment)
      : devices(environment.rdma_devices),
        gid_index(environment.gid_index),
        traffic_class(environment.rdma_traffic_class),
        service_level(environment.rdma_service_level),
        num_qp_per_pe(environment.queue_pairs_per_peer) {}
};

[[nodiscard]] inline Trouble check(int world, const Arena& arena, const Options& options) {
  auto const outside = [](Step step, std::int64_t value, std::int64_t low, std::int64_t high) {
    return value < low || value > high ? Trouble{.step = step, .value = value, .limit = value < low ? low : high}
                                       : Trouble{};
  };
  if (Trouble t = outside(Step::world, world, 1, WorkId::kMostPeers)) return t;
  if (Trouble t = outside(Step::num_qp_per_pe, options.num_qp_per_pe, 1, WorkId::kMostQueuePairs)) return t;
  if (Trouble t = outside(Step::depth, options.depth, 1, Options::kMostDepth)) return t;
  if (Trouble t = outside(Step::ack_timeout, options.ack_timeout, Options::kLeastTimeout, 31)) return t;
  return outside(Step::arena, arena.base == nullptr ? 0 : static_cast<std::int64_t>(arena.bytes), 1, INT64_MAX);
}

}  // namespace mori_ep::fabric::verbs
