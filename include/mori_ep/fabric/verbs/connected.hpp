// SPDX-License-Identifier: MIT
//! @file The fabric that has libibverbs: how ranks connect, and what a rank posts and polls.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/random_bytes.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/request_error.hpp"
#include "mori_ep/fabric/verbs/connection.hpp"
#include "mori_ep/fabric/verbs/lane.hpp"

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
  static constexpr const char* kName = "Verbs";
  static constexpr Order kOrder = Order::in_queue_pair;

  //! @brief Collective: opens a device, registers the arena and connects all queue pairs.
  //! @param api other functions than the library's, for tests
  static Result<VerbsConnected> connect(const comm::Communicator& comm, const Arena& arena, const Options& options = {},
                                        std::shared_ptr<const verbs::Api> api = nullptr) noexcept {
    VerbsConnected made(comm.rank(), comm.world());
    verbs::Card mine;
    mine.num_qp_per_pe = options.num_qp_per_pe;
    mine.trouble = made.open(comm, arena, options, std::move(api), mine);
    auto const ranks = static_cast<std::size_t>(comm.world());
    std::vector<verbs::Card> cards(ranks);
    if (Status s = comm.all_gather(&mine, cards.data(), sizeof(mine)); !s.ok()) return s;
    if (verbs::Trouble const t = verbs::agree(cards)) return t.error();

    std::vector<std::uint32_t> numbers, everyones(ranks * made.lanes_.size());
    for (const verbs::Lane& lane : made.lanes_) numbers.push_back(lane.qp()->qp_num);
    if (Status s = comm.all_gather(numbers.data(), everyones.data(), numbers.size() * sizeof(numbers[0])); !s.ok())
      return s;

    made.cards_ = std::move(cards);
    verbs::Trouble const joined = made.join(options, everyones);
    std::vector<verbs::Trouble> outcomes(ranks);
    // Also the barrier before which nobody posts: a peer that is not connected yet would not answer.
    if (Status s = comm.all_gather(&joined, outcomes.data(), sizeof(joined)); !s.ok()) return s;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      if (outcomes[rank]) {
        outcomes[rank].rank = static_cast<int>(rank);
        return outcomes[rank].error();
      }
    return made;
  }

  VerbsConnected(VerbsConnected&&) noexcept = default;
  VerbsConnected& operator=(VerbsConnected&&) = delete;  // what there was would outlive its functions

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world() const noexcept { return world_; }
  [[nodiscard]] int queue_pairs() const noexcept { return queue_pairs_; }
  [[nodiscard]] int depth() const noexcept { return depth_; }
  [[nodiscard]] const Counters& counters(int peer) const noexcept { return counters_[static_cast<std::size_t>(peer)]; }
  //! @brief "rxe0 port 1", and the address in use.
  [[nodiscard]] std::string device() const { return device_.port.text() + ", GID " + device_.gid.text(); }
  //! @brief Bytes of a packet to `peer`.
  [[nodiscard]] int mtu(int peer) const noexcept { return path_mtu(card(rank_), card(peer)); }
  //! @brief Of `peer`'s arena: what its poster keeps offsets within.
  [[nodiscard]] std::uint64_t arena_bytes(int peer) const noexcept { return card(peer).arena_bytes; }

  //! @brief Requests of another queue pair than the first's are not taken in the same call.
  [[nodiscard]] std::size_t post(std::span<const WorkRequest> requests) noexcept {
    if (requests.empty()) return 0;
    const WorkId& first = requests.front().id;
    if (first.peer >= world_ || first.queue_pair >= queue_pairs_) return 0;
    std::size_t run = 1;
    while (run < requests.size() && requests[run].id.peer == first.peer &&
           requests[run].id.queue_pair == first.queue_pair)
      ++run;
    std::uint32_t const index = first.peer * static_cast<std::uint32_t>(queue_pairs_) + first.queue_pair;
    verbs::Lane& lane = lanes_[index];
    std::size_t const taken = lane.post(*api_, *chain_, requests.first(run), now());
    note(index);
    Counters& counters = counters_[first.peer];
    for (const WorkRequest& request : requests.first(taken))
      Counters::add(counters.bytes, request.id.operation == Operation::signal ? 0 : request.bytes);
    Counters::add(counters.messages, taken);
    if (taken < run) Counters::add(counters.refusals, 1);
    return taken;
  }

  [[nodiscard]] std::size_t poll(std::span<Completion> into) noexcept {
    for (std::size_t i = 0; i < completion_queues_.size(); ++i) poll_device(i);
    for (std::size_t n = with_rest_.size(); n > 0; --n) {  // once each; who still has one is noted again
      std::uint32_t const index = with_rest_.front();
      with_rest_.pop();
      lanes_[index].post_rest(*api_, *chain_);
      note(index);
    }
    std::size_t told = 0;
    for (std::uint64_t const at = ended_.empty() ? 0 : now(); told < into.size() && !ended_.empty();) {
      std::uint32_t const index = ended_.front();
      verbs::SendQueue& queue = lanes_[index].queue();
      while (told < into.size() && queue.has_ended()) into[told++] = completion(index, queue.tell(), at);
      if (!queue.has_ended()) ended_.pop();
    }
    return told;
  }

 private:
  //! Lanes that something is to be done about, each once, in the order in which they came.
  class Turns {
   public:
    explicit Turns(std::size_t lanes = 0) : ring_(lanes), waits_(lanes, false) {}
    [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }
    [[nodiscard]] std::uint32_t front() const noexcept { return ring_[first_]; }
    void push(std::uint32_t lane) noexcept {
      if (std::exchange(waits_[lane], true)) return;
      ring_[(first_ + size_++) % ring_.size()] = lane;
    }
    void pop() noexcept {
      waits_[front()] = false;
      first_ = (first_ + 1) % ring_.size();
      --size_;
    }

   private:
    std::vector<std::uint32_t> ring_;
    std::vector<char> waits_;
    std::size_t first_ = 0, size_ = 0;
  };

  VerbsConnected(int rank, int world) : rank_(rank), world_(world) {}

  [[nodiscard]] const verbs::Card& card(int rank) const noexcept { return cards_[static_cast<std::size_t>(rank)]; }

  static std::uint64_t now() noexcept {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

  [[nodiscard]] static verbs::Trouble check(int world, const Arena& arena, const Options& options) {
    using verbs::Step;
    auto const outside = [](Step step, std::int64_t value, std::int64_t low, std::int64_t high) {
      return value < low || value > high
                 ? verbs::Trouble{.step = step, .value = value, .limit = value < low ? low : high}
                 : verbs::Trouble{};
    };
    if (auto t = outside(Step::world, world, 1, WorkId::kMostPeers)) return t;
    if (auto t = outside(Step::num_qp_per_pe, options.num_qp_per_pe, 1, WorkId::kMostQueuePairs)) return t;
    if (auto t = outside(Step::depth, options.depth, 1, Options::kMostDepth)) return t;
    if (auto t = outside(Step::ack_timeout, options.ack_timeout, Options::kLeastTimeout, 31)) return t;
    if (arena.base == nullptr || arena.bytes == 0)
      return {
          .step = Step::arena, .value = static_cast<std::int64_t>(arena.base == nullptr ? 0 : arena.bytes), .limit = 1};
    return {};
  }

  //! What a rank does alone. Whatever fails, what was made ends with this object.
  [[nodiscard]] verbs::Trouble open(const comm::Communicator& comm, const Arena& arena, const Options& options,
                                    std::shared_ptr<const verbs::Api> api, verbs::Card& card) {
    using verbs::Step;
    if (auto t = check(world_, arena, options)) return t;
    api_ = std::move(api);
    if (!api_)
      if (auto t = verbs::Api::load(api_)) return t;
    int turn = 0;
    for (int r = 0; r < rank_; ++r) turn += comm.on_host(r) ? 1 : 0;
    if (auto t = verbs::open_device(*api_, options, turn, device_)) return t;
    const verbs::Port& port = device_.port;
    domain_ = verbs::ProtectionDomain(*api_, api_->alloc_pd(device_.context.get()));
    if (!domain_) return refused_call(Step::alloc_pd, errno, port.text());
    if (auto t = register_arena(arena)) return t;

    queue_pairs_ = options.num_qp_per_pe;
    // A put with its signal is two writes.
    depth_ = std::max(1, std::min({options.depth, device_.limits.max_qp_wr / 2, device_.limits.max_cqe / 2}));
    std::size_t const lanes = static_cast<std::size_t>(world_ * queue_pairs_), depth = static_cast<std::size_t>(depth_);
    signal_words_ = std::make_unique<std::uint64_t[]>(lanes * depth);
    signals_ = verbs::MemoryRegion(*api_, api_->reg_mr(domain_.get(), signal_words_.get(),
                                                       lanes * depth * sizeof(std::uint64_t), IBV_ACCESS_LOCAL_WRITE));
    if (!signals_) return refused_call(Step::reg_signals, errno, port.text());
    if (auto t = create_lanes(lanes)) return t;

    counters_ = std::make_unique<Counters[]>(static_cast<std::size_t>(world_));
    chain_ = std::make_unique<verbs::Chain>();
    ended_ = with_rest_ = Turns(lanes);
    (void)comm::draw(std::as_writable_bytes(std::span(&card.first_psn, 1)));
    card.arena_base = reinterpret_cast<std::uint64_t>(arena.base);
    card.arena_bytes = arena.bytes;
    card.arena_key = arena_->rkey;
    card.mtu = port.mtu;
    card.lid = port.lid;
    card.ethernet = port.ethernet;
    card.needs_grh = port.needs_grh;
    card.gid_kind = device_.gid.kind;
    card.gid = device_.gid.bytes;
    return {};
  }

  [[nodiscard]] verbs::Trouble register_arena(const Arena& arena) {
    using verbs::Step;
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    std::string const where = device_.port.text();
    bool const by_dmabuf = arena.dmabuf_fd >= 0;
    if (by_dmabuf && api_->reg_dmabuf_mr != nullptr)
      arena_ = verbs::MemoryRegion(
          *api_, api_->reg_dmabuf_mr(domain_.get(), arena.dmabuf_offset, arena.bytes,
                                     reinterpret_cast<std::uint64_t>(arena.base), arena.dmabuf_fd, kAccess));
    // Without dmabuf an older driver's own way may still know a GPU's address.
    int const by_dmabuf_errno = arena_ ? 0 : api_->reg_dmabuf_mr == nullptr ? ENOSYS : errno;
    if (!arena_) arena_ = verbs::MemoryRegion(*api_, api_->reg_mr(domain_.get(), arena.base, arena.bytes, kAccess));
    if (arena_) return {};
    return by_dmabuf ? refused_call(Step::reg_dmabuf, by_dmabuf_errno, where)
                     : refused_call(Step::reg_arena, errno, where);
  }

  //! As few completion queues as hold what all their queue pairs can have in flight: one that runs over is lost.
  [[nodiscard]] verbs::Trouble create_lanes(std::size_t lanes) {
    int const writes = 2 * depth_;
    auto const each = static_cast<std::size_t>(std::max(1, device_.limits.max_cqe / writes));
    lanes_.reserve(lanes);
    for (std::size_t i = 0; i < lanes; ++i) {
      if (i % each == 0) {
        int const entries = static_cast<int>(std::min(each, lanes - i)) * writes;
        completion_queues_.emplace_back(*api_, api_->create_cq(device_.context.get(), entries, nullptr, nullptr, 0));
        if (!completion_queues_.back()) return refused_call(verbs::Step::create_cq, errno, device_.port.text());
      }
      verbs::QueuePair qp;
      if (auto t = create_queue_pair(*api_, device_, domain_.get(), completion_queues_.back().get(), writes, qp))
        return t;
      lanes_.emplace_back(std::move(qp), static_cast<std::uint32_t>(i), depth_, writes, device_.port.max_message);
    }
    lanes_of_queue_ = each;
    return {};
  }

  //! @param numbers of queue pairs, [from][to][queue pair]
  [[nodiscard]] verbs::Trouble join(const Options& options, std::span<const std::uint32_t> numbers) {
    const verbs::Card& mine = card(rank_);
    auto const queue_pairs = static_cast<std::size_t>(queue_pairs_), depth = static_cast<std::size_t>(depth_);
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      std::size_t const peer = i / queue_pairs, queue_pair = i % queue_pairs;
      const verbs::Card& theirs = cards_[peer];
      verbs::FarEnd const far{
          .card = theirs,
          .rank = static_cast<int>(peer),
          .queue_pair_number =
              numbers[peer * lanes_.size() + static_cast<std::size_t>(rank_) * queue_pairs + queue_pair]};
      if (auto t = connect_queue_pair(*api_, device_, options, mine, rank_, far, static_cast<int>(queue_pair),
                                      lanes_[i].qp()))
        return t;
      std::uint64_t* const words = signal_words_.get() + i * depth;
      lanes_[i].set_memory({.arena = {mine.arena_base, arena_->lkey},
                            .peer = {theirs.arena_base, theirs.arena_key},
                            .signals = {reinterpret_cast<std::uint64_t>(words), signals_->lkey},
                            .signal_words = words});
    }
    return {};
  }

  void note(std::uint32_t index) noexcept {
    if (lanes_[index].queue().has_ended()) ended_.push(index);
    if (lanes_[index].has_rest()) with_rest_.push(index);
  }

  void poll_device(std::size_t i) noexcept {
    constexpr int kMost = 32;
    ibv_wc wc[kMost];
    for (int n = kMost; n == kMost;) {
      n = api_->poll_cq(completion_queues_[i].get(), kMost, wc);
      for (int k = 0; k < n; ++k) {
        auto const index = static_cast<std::uint32_t>(wc[k].wr_id >> 32);
        lanes_[index].complete(static_cast<std::uint32_t>(wc[k].wr_id), wc[k].status,
                               api_->wc_status_str(wc[k].status));
        note(index);
      }
      if (n >= 0) continue;
      // The device will say no more of these queue pairs.
      std::size_t const first = i * lanes_of_queue_, end = std::min(first + lanes_of_queue_, lanes_.size());
      for (std::size_t lane = first; lane < end; ++lane) {
        lanes_[lane].lose(verbs::error_number(n), "ibv_poll_cq failed");
        note(static_cast<std::uint32_t>(lane));
      }
    }
  }

  [[nodiscard]] Completion completion(std::uint32_t index, const verbs::SendQueue::End& end,
                                      std::uint64_t at) noexcept {
    Counters& counters = counters_[index / static_cast<std::uint32_t>(queue_pairs_)];
    counters.waited(at - end.entry.taken_ns);
    Counters::add(end.ok ? counters.completions : counters.errors, 1);
    if (end.ok) return {end.entry.id, {}};
    return {end.entry.id, failure(lanes_[index], end)};
  }

  [[nodiscard]] Error failure(const verbs::Lane& lane, const verbs::SendQueue::End& end) const noexcept {
    return request_error(
        rank_, end.entry.id, lane.status(),
        "The queue pair is out of use. Is the peer's process alive, its link up, its arena registered?",
        (end.first_failure ? "" : "flushed after ") + lane.reason());
  }

  int rank_, world_;
  int queue_pairs_ = 0, depth_ = 0;
  std::size_t lanes_of_queue_ = 1;
  // What is made later ends earlier.
  std::shared_ptr<const verbs::Api> api_;
  verbs::Device device_;
  verbs::ProtectionDomain domain_;
  verbs::MemoryRegion arena_;
  std::unique_ptr<std::uint64_t[]> signal_words_;  // [lane][depth]: where signals are sent from
  verbs::MemoryRegion signals_;
  std::vector<verbs::CompletionQueue> completion_queues_;
  std::vector<verbs::Lane> lanes_;  // [peer][queue pair]
  std::unique_ptr<Counters[]> counters_;
  std::unique_ptr<verbs::Chain> chain_;
  std::vector<verbs::Card> cards_;  // by rank
  Turns ended_, with_rest_;
};
static_assert(Fabric<VerbsConnected>);

}  // namespace mori_ep::fabric

#endif
