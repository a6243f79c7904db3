// SPDX-License-Identifier: MIT
//! @file The fabric that has libibverbs: how ranks connect, and what a rank posts and polls.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/request_error.hpp"
#include "mori_ep/fabric/verbs/endpoint.hpp"
#include "mori_ep/fabric/verbs/turns.hpp"

namespace mori_ep::fabric {

//! @brief Reliable connections from each rank to each, itself among them, over one port of one device a rank.
//!
//! Requires RDMA write alone: no atomics, no shared receive queues, no immediate or inline data, no vendor's extension.
//! Order     in_queue_pair. A reliable connection executes writes in the order in which they were posted, and the arena
//!           is registered without relaxed ordering, so the bus keeps that order to the memory: who acquires a signal
//!           sees all bytes posted before it on its queue pair. An aligned word of eight bytes is one store. Neither is
//!           the standard's promise, which speaks of receives; cards keep it where the bytes and the word lie in memory
//!           of one kind behind one bridge: both in the host's, or both in one GPU's. Soft-RoCE copies with one
//!           processor, and keeps it where stores are not reordered (x86).
//! Errors    connect(): every rank gets the same error, which names the rank, the call and the device. A completion's
//!           names peer, operation, epoch, queue pair and the device's word for it. Other queue pairs go on.
//! Ends      while no peer posts to it any more: meet in a barrier first.
class VerbsConnected {
 public:
  using Arena = verbs::Arena;
  using Options = verbs::Options;
  static constexpr bool kHostCopies = false;  // whether a card reaches a GPU's memory shows when it is registered
  static constexpr const char* kName = "verbs";
  static constexpr Order kOrder = Order::in_queue_pair;

  //! @brief Collective: opens a device, registers the arena and connects all queue pairs.
  //! @param api other functions than the library's, for tests
  static Result<VerbsConnected> connect(const comm::Communicator& comm, const Arena& arena, const Options& options = {},
                                        std::shared_ptr<const verbs::Api> api = nullptr) noexcept {
    verbs::Endpoint end;
    end.api = std::move(api);
    int turn = 0;
    for (int r = 0; r < comm.rank(); ++r) turn += comm.on_host(r) ? 1 : 0;
    verbs::Card mine;
    mine.num_qp_per_pe = options.num_qp_per_pe;
    mine.trouble = end.open(comm.world(), turn, arena, options, mine);
    auto const ranks = static_cast<std::size_t>(comm.world());
    std::vector<verbs::Card> cards(ranks);
    if (Status s = comm.all_gather(&mine, cards.data(), sizeof(mine)); !s.ok()) return s;
    if (verbs::Trouble const t = verbs::agree(cards)) return t.error();

    std::vector<std::uint32_t> const numbers = end.queue_pair_numbers();
    std::vector<std::uint32_t> everyones(ranks * numbers.size());
    if (Status s = comm.all_gather(numbers.data(), everyones.data(), numbers.size() * sizeof(numbers[0])); !s.ok())
      return s;
    // Also the barrier before which nobody posts: a peer that is not connected yet would not answer.
    verbs::Trouble const joined = end.join(comm.rank(), options, cards, everyones);
    std::vector<verbs::Trouble> outcomes(ranks);
    if (Status s = comm.all_gather(&joined, outcomes.data(), sizeof(joined)); !s.ok()) return s;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (outcomes[rank]) {
        outcomes[rank].rank = static_cast<int>(rank);
        return outcomes[rank].error();
      }
    return VerbsConnected(comm.rank(), std::move(end), std::move(cards));
  }

  //! @brief The same, as transports connect: `owner` keeps both memories while the fabric lives. `of_arena`: where the
  //!        arena is a device's own memory.
  static Result<VerbsConnected> connect(const comm::Communicator& comm, std::span<std::byte> arena,
                                        std::span<std::byte> board, std::shared_ptr<const void> owner,
                                        const Options& options = {}, const exec::Dmabuf& of_arena = {}) noexcept {
    auto fabric = connect(comm,
                          {.base = arena.data(),
                           .bytes = arena.size(),
                           .dmabuf_fd = of_arena.fd,
                           .dmabuf_offset = of_arena.offset,
                           .board = board.data(),
                           .board_bytes = board.size()},
                          options);
    if (fabric.ok()) fabric->owner_ = std::move(owner);
    return fabric;
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world() const noexcept { return static_cast<int>(cards_.size()); }
  [[nodiscard]] int queue_pairs() const noexcept { return end_.queue_pairs; }
  [[nodiscard]] int depth() const noexcept { return end_.depth; }
  [[nodiscard]] const Counters& counters(int peer) const noexcept { return counters_[static_cast<std::size_t>(peer)]; }
  //! @brief "rxe0 port 1", and the address in use.
  [[nodiscard]] std::string device() const { return end_.device.port.text() + ", GID " + end_.device.gid.text(); }
  //! @brief Bytes of a packet to `peer`.
  [[nodiscard]] int mtu(int peer) const noexcept { return path_mtu(card(rank_), card(peer)); }
  //! @brief Of `peer`'s arena: what its poster keeps offsets within.
  [[nodiscard]] std::uint64_t arena_bytes(int peer) const noexcept { return card(peer).arena_bytes; }

  //! @brief Requests of another queue pair than the first's are not taken in the same call.
  [[nodiscard]] std::size_t post(std::span<const WorkRequest> requests) noexcept {
    if (requests.empty()) return 0;
    const WorkId& first = requests.front().id;
    if (first.peer >= world() || first.queue_pair >= queue_pairs()) return 0;
    std::size_t run = 1;
    while (run < requests.size() && requests[run].id.peer == first.peer &&
           requests[run].id.queue_pair == first.queue_pair)
      ++run;
    std::uint32_t const index = first.peer * static_cast<std::uint32_t>(queue_pairs()) + first.queue_pair;
    verbs::Lane& lane = end_.lanes[index];
    std::size_t const taken = lane.post(*end_.api, *chain_, requests.first(run), now());
    note(index);
    Counters& counters = counters_[first.peer];
    for (const WorkRequest& request : requests.first(taken))
      Counters::add(counters.bytes, request.id.operation == Operation::signal ? 0 : request.bytes);
    Counters::add(counters.messages, taken);
    if (taken < run) Counters::add(counters.refusals, 1);
    return taken;
  }

  [[nodiscard]] std::size_t poll(std::span<Completion> into) noexcept {
    for (std::size_t i = 0; i < end_.completion_queues.size(); ++i) poll_device(i);
    for (std::size_t n = with_rest_.size(); n > 0; --n) {  // once each: who still has one is noted again
      std::uint32_t const index = with_rest_.front();
      with_rest_.pop();
      end_.lanes[index].post_rest(*end_.api, *chain_);
      note(index);
    }
    std::size_t told = 0;
    for (std::uint64_t const at = ended_.empty() ? 0 : now(); told < into.size() && !ended_.empty();) {
      std::uint32_t const index = ended_.front();
      verbs::SendQueue& queue = end_.lanes[index].queue();
      while (told < into.size() && queue.has_ended()) into[told++] = completion(index, queue.tell(), at);
      if (!queue.has_ended()) ended_.pop();
    }
    return told;
  }

 private:
  VerbsConnected(int rank, verbs::Endpoint&& end, std::vector<verbs::Card>&& cards)
      : rank_(rank),
        end_(std::move(end)),
        cards_(std::move(cards)),
        counters_(std::make_unique<Counters[]>(cards_.size())),
        chain_(std::make_unique<verbs::Chain>()),
        ended_(end_.lanes.size()),
        with_rest_(end_.lanes.size()) {}

  [[nodiscard]] const verbs::Card& card(int rank) const noexcept { return cards_[static_cast<std::size_t>(rank)]; }

  static std::uint64_t now() noexcept {
    std::chrono::nanoseconds const since = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(since.count());
  }

  void note(std::uint32_t index) noexcept {
    if (end_.lanes[index].queue().has_ended()) ended_.push(index);
    if (end_.lanes[index].has_rest()) with_rest_.push(index);
  }

  void poll_device(std::size_t i) noexcept {
    constexpr int kMost = 32;
    ibv_wc wc[kMost];
    for (int n = kMost; n == kMost;) {
      n = end_.api->poll_cq(end_.completion_queues[i].get(), kMost, wc);
      for (int k = 0; k < n; ++k) {
        auto const index = static_cast<std::uint32_t>(wc[k].wr_id >> 32);
        const char* const text = wc[k].status == IBV_WC_SUCCESS ? "" : end_.api->wc_status_str(wc[k].status);
        end_.lanes[index].complete(static_cast<std::uint32_t>(wc[k].wr_id), wc[k].status, text);
        note(index);
      }
      if (n >= 0) continue;
      // The device will say no more of these queue pairs.
      std::size_t const first = i * end_.lanes_per_queue,
                        end = std::min(first + end_.lanes_per_queue, end_.lanes.size());
      for (std::size_t lane = first; lane < end; ++lane) {
        end_.lanes[lane].lose(verbs::error_number(n), "ibv_poll_cq failed");
        note(static_cast<std::uint32_t>(lane));
      }
    }
  }

  [[nodiscard]] Completion completion(std::uint32_t index, const verbs::SendQueue::End& end,
                                      std::uint64_t at) noexcept {
    Counters& counters = counters_[index / static_cast<std::uint32_t>(queue_pairs())];
    counters.waited(at - end.entry.taken_ns);
    Counters::add(end.ok ? counters.completions : counters.errors, 1);
    if (end.ok) return {end.entry.id, {}};
    return {end.entry.id, failure(end_.lanes[index], end)};
  }

  [[nodiscard]] Error failure(const verbs::Lane& lane, const verbs::SendQueue::End& end) const noexcept {
    return request_error(
        rank_, end.entry.id, lane.status(),
        "The queue pair is out of use. Is the peer's process alive, its link up, its arena registered?",
        (end.first_failure ? "" : "flushed after ") + lane.reason());
  }

  int rank_;
  std::shared_ptr<const void> owner_;
  verbs::Endpoint end_;
  std::vector<verbs::Card> cards_;        // by rank
  std::unique_ptr<Counters[]> counters_;  // by peer
  std::unique_ptr<verbs::Chain> chain_;
  verbs::Turns ended_;      // lanes with ends to tell
  verbs::Turns with_rest_;  // lanes that hold a request of which not all is posted
};
static_assert(Fabric<VerbsConnected>);

}  // namespace mori_ep::fabric

#endif
