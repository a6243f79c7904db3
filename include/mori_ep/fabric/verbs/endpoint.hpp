// SPDX-License-Identifier: MIT
//! @file All that one rank has of its device: opened, registered and created by itself, then joined with its peers'.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/comm/random_bytes.hpp"
#include "mori_ep/fabric/verbs/connection.hpp"
#include "mori_ep/fabric/verbs/lane.hpp"

namespace mori_ep::fabric::verbs {

//! @brief Whatever fails, what was made ends with this object; what was made later ends earlier.
struct Endpoint {
  std::shared_ptr<const Api> api;
  Device device;
  ProtectionDomain domain;
  MemoryRegion arena, board;
  std::unique_ptr<std::uint64_t[]> signal_words;  //!< [lane][depth]: where signals are sent from
  MemoryRegion signals;
  std::vector<CompletionQueue> completion_queues;
  std::size_t lanes_per_queue = 1;  //!< the first so many lanes complete in the first completion queue, and so on
  std::vector<Lane> lanes;          //!< [peer][queue pair]
  int queue_pairs = 0, depth = 0;

  Endpoint() = default;
  Endpoint(Endpoint&&) noexcept = default;
  Endpoint& operator=(Endpoint&&) = delete;  // what there was would outlive its functions

  //! @brief What a rank does alone.
  //! @param turn how many ranks of this host come before it
  [[nodiscard]] Trouble open(int world, int turn, const Arena& memory, const Options& options, Card& card) {
    if (Trouble t = check(world, memory, options)) return t;
    if (!api)
      if (Trouble t = Api::load(api)) return t;
    if (Trouble t = open_device(*api, options, turn, device)) return t;
    const Port& port = device.port;
    domain = ProtectionDomain(*api, api->alloc_pd(device.context.get()));
    if (!domain) return refused_call(Step::alloc_pd, errno, port.text());
    if (Trouble t = register_arena(memory)) return t;
    if (Trouble t = register_board(memory)) return t;
    queue_pairs = options.num_qp_per_pe;
    // A put with its signal is two writes.
    depth = std::max(1, std::min({options.depth, device.limits.max_qp_wr / 2, device.limits.max_cqe / 2}));
    auto const count = static_cast<std::size_t>(world) * static_cast<std::size_t>(queue_pairs);
    if (Trouble t = register_signals(count * static_cast<std::size_t>(depth))) return t;
    if (Trouble t = create_lanes(count)) return t;

    card.arena_base = reinterpret_cast<std::uint64_t>(memory.base);
    card.arena_bytes = memory.bytes;
    card.arena_key = arena->rkey;
    if (board) {
      card.board_base = reinterpret_cast<std::uint64_t>(memory.board);
      card.board_key = board->rkey;
    }
    (void)comm::draw(std::as_writable_bytes(std::span(&card.first_psn, 1)));
    card.mtu = port.mtu;
    card.lid = port.lid;
    card.ethernet = port.ethernet;
    card.needs_grh = port.needs_grh;
    card.gid_kind = device.gid.kind;
    card.gid = device.gid.bytes;
    return {};
  }

  [[nodiscard]] std::vector<std::uint32_t> queue_pair_numbers() const {
    std::vector<std::uint32_t> numbers;
    for (const Lane& lane : lanes) numbers.push_back(lane.qp()->qp_num);
    return numbers;
  }

  //! @brief Connects every queue pair to the peer's.
  //! @param numbers of everyone's queue pairs, [from][to][queue pair]
  [[nodiscard]] Trouble join(int rank, const Options& options, std::span<const Card> cards,
                             std::span<const std::uint32_t> numbers) {
    const Card& mine = cards[static_cast<std::size_t>(rank)];
    auto const each = static_cast<std::size_t>(queue_pairs);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      std::size_t const peer = i / each, queue_pair = i % each;
      FarEnd const far{
          .card = cards[peer],
          .rank = static_cast<int>(peer),
          .queue_pair_number = numbers[peer * lanes.size() + static_cast<std::size_t>(rank) * each + queue_pair]};
      if (Trouble t =
              connect_queue_pair(*api, device, options, mine, rank, far, static_cast<int>(queue_pair), lanes[i].qp()))
        return t;
      std::uint64_t* const words = signal_words.get() + i * static_cast<std::size_t>(depth);
      lanes[i].set_memory({.arena = {mine.arena_base, arena->lkey},
                           .peer = {far.card.arena_base, far.card.arena_key},
                           .peer_board = {far.card.board_base, far.card.board_key},
                           .signals = {reinterpret_cast<std::uint64_t>(words), signals->lkey},
                           .signal_words = words});
    }
    return {};
  }

 private:
  [[nodiscard]] Trouble register_arena(const Arena& memory) {
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    bool const by_dmabuf = memory.dmabuf_fd >= 0;
    int dmabuf_errno = ENOSYS;
    if (by_dmabuf && api->reg_dmabuf_mr != nullptr) {
      arena = MemoryRegion(*api,
                           api->reg_dmabuf_mr(domain.get(), memory.dmabuf_offset, memory.bytes,
                                              reinterpret_cast<std::uint64_t>(memory.base), memory.dmabuf_fd, kAccess));
      dmabuf_errno = errno;
    }
    // Without dmabuf an older driver's own way may still know a GPU's address.
    if (!arena) arena = MemoryRegion(*api, api->reg_mr(domain.get(), memory.base, memory.bytes, kAccess));
    if (arena) return {};
    return by_dmabuf ? refused_call(Step::reg_dmabuf, dmabuf_errno, device.port.text())
                     : refused_call(Step::reg_arena, errno, device.port.text());
  }

  [[nodiscard]] Trouble register_board(const Arena& memory) {
    if (memory.board_bytes == 0) return {};
    board = MemoryRegion(*api, api->reg_mr(domain.get(), memory.board, memory.board_bytes,
                                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
    return board ? Trouble{} : refused_call(Step::reg_arena, errno, device.port.text());
  }

  [[nodiscard]] Trouble register_signals(std::size_t words) {
    signal_words = std::make_unique<std::uint64_t[]>(words);
    signals = MemoryRegion(
        *api, api->reg_mr(domain.get(), signal_words.get(), words * sizeof(std::uint64_t), IBV_ACCESS_LOCAL_WRITE));
    return signals ? Trouble{} : refused_call(Step::reg_signals, errno, device.port.text());
  }

  //! As few completion queues as hold what all their queue pairs can have in flight: one that runs over is lost.
  [[nodiscard]] Trouble create_lanes(std::size_t count) {
    int const writes = 2 * depth;
    lanes_per_queue = static_cast<std::size_t>(std::max(1, device.limits.max_cqe / writes));
    lanes.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      if (i % lanes_per_queue == 0) {
        int const entries = static_cast<int>(std::min(lanes_per_queue, count - i)) * writes;
        completion_queues.emplace_back(*api, api->create_cq(device.context.get(), entries, nullptr, nullptr, 0));
        if (!completion_queues.back()) return refused_call(Step::create_cq, errno, device.port.text());
      }
      QueuePair qp;
      if (Trouble t = create_queue_pair(*api, device, domain.get(), completion_queues.back().get(), writes, qp))
        return t;
      lanes.emplace_back(std::move(qp), static_cast<std::uint32_t>(i), depth, writes, device.port.max_message);
    }
    return {};
  }
};

}  // namespace mori_ep::fabric::verbs

#endif
