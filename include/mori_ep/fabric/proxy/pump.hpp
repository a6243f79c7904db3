// SPDX-License-Identifier: MIT
//! @file From rings to a fabric and back, a step at a time.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "mori_ep/error.hpp"
#include "mori_ep/fabric/command_ring.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/proxy/counters.hpp"
#include "mori_ep/fabric/proxy/queue_pair.hpp"

namespace mori_ep::fabric {

//! @brief The first request to a peer that failed.
struct Fault {
  WorkId id;
  Status status;
};

//! @brief Tells kernels of a fault, from the proxy's thread, before any command that failed with it is told to have
//!        ended. Once for each peer.
using OnFault = std::function<void(const Fault&)>;

namespace proxy {

//! @brief What a proxy does, without its thread.
//!
//! A command stays in its slot until its request has ended, so nothing here grows. Commands of one queue pair are posted
//! in the order in which they are read: in the ring's, where they come from one ring.
template <Fabric F>
class Pump {
 public:
  Pump(F& fabric, std::vector<CommandReader> rings, OnFault on_fault)
      : fabric_(&fabric),
        on_fault_(std::move(on_fault)),
        queue_pairs_(static_cast<std::size_t>(fabric.world() * fabric.queue_pairs()), QueuePair(fabric.depth())),
        faults_(new Told[static_cast<std::size_t>(fabric.world())]),
        counters_(std::make_unique<ProxyCounters>()) {
    Place places = 0;
    for (const CommandReader& reader : rings) {
      rings_.push_back({reader, places});
      places += reader.capacity();
    }
    next_.assign(places, kNowhere);
    ended_.assign(places, false);
  }

  //! @brief Has anything moved?
  bool step() {
    bool moved = poll();
    for (Ring& ring : rings_) moved |= read(ring);
    if (waiting_ != 0) moved |= post();
    for (Ring& ring : rings_) moved |= free(ring);
    return moved;
  }
  //! @brief Have all commands that are published ended?
  [[nodiscard]] bool idle() const noexcept {
    return std::all_of(rings_.begin(), rings_.end(), [](const Ring& ring) {
      return ring.reader.oldest() == ring.reader.position() && !ring.reader.published();
    });
  }

  //! @brief Commands read that have not ended, and a peer for which a request is in flight, or -1.
  [[nodiscard]] std::int64_t unfinished() const noexcept {
    std::int64_t n = 0;
    for (const Ring& ring : rings_) n += ring.reader.position() - ring.reader.oldest();
    return n;
  }
  [[nodiscard]] int awaited() const noexcept {
    for (std::size_t i = 0; i < queue_pairs_.size(); ++i)
      if (queue_pairs_[i].window.in_flight() != 0) return static_cast<int>(i) / fabric_->queue_pairs();
    return -1;
  }

  //! @brief From any thread.
  [[nodiscard]] Status status(int peer) const noexcept {
    const Told& told = faults_[static_cast<std::size_t>(peer)];
    return told.told.load(std::memory_order_acquire) ? told.fault.status : Status{};
  }
  [[nodiscard]] const ProxyCounters& counters() const noexcept { return *counters_; }
  [[nodiscard]] const F& fabric() const noexcept { return *fabric_; }

 private:
  static constexpr std::size_t kBatch = 32;  // requests of a post, completions of a poll
  static constexpr int kMostReads = 256;     // of a ring, before completions are looked for again

  struct Ring {
    CommandReader reader;
    Place first;  // of its slots
  };
  struct Told {
    Fault fault;
    std::atomic<bool> told{false};
  };

  [[nodiscard]] QueuePair& queue_pair(const WorkId& id) noexcept {
    return queue_pairs_[static_cast<std::size_t>(id.peer * fabric_->queue_pairs() + id.queue_pair)];
  }
  [[nodiscard]] bool known(const WorkId& id) const noexcept {
    return id.peer < fabric_->world() && id.queue_pair < fabric_->queue_pairs();
  }
  [[nodiscard]] bool failed(int peer) const noexcept {
    return faults_[static_cast<std::size_t>(peer)].told.load(std::memory_order_relaxed);
  }
  void count(std::atomic<std::uint64_t>& counter, std::uint64_t n = 1) noexcept { Counters::add(counter, n); }

  bool poll() {
    std::size_t const n = fabric_->poll(completions_);
    for (const Completion& completion : std::span(completions_).first(n)) {
      Place const place =
          known(completion.id) ? queue_pair(completion.id).window.ended(completion.id.sequence) : kNowhere;
      if (place == kNowhere) {
        count(counters_->duplicates);
        continue;
      }
      if (!completion.status.ok()) fail(completion);
      ended_[place] = true;
      count(counters_->ended);
    }
    return n != 0;
  }

  bool read(Ring& ring) {
    int n = 0;
    for (; n < kMostReads; ++n) {
      Place const place = ring.first + (ring.reader.position() & (ring.reader.capacity() - 1));
      const Command* const command = ring.reader.next();
      if (command == nullptr) break;
      WorkId const id = command->request().id;
      if (!known(id) || failed(id.peer)) {
        drop(place);
        continue;
      }
      queue_pair(id).waiting.push(place, next_);
      ++waiting_;
    }
    if (n != 0) count(counters_->commands, static_cast<std::uint64_t>(n));
    return n != 0;
  }

  bool post() {
    bool moved = false;
    for (QueuePair& qp : queue_pairs_) {
      while (!qp.waiting.empty()) {
        std::size_t n = 0;
        for (Place place = qp.waiting.first(); place != kNowhere && n < kBatch && n < qp.window.room(); ++n) {
          requests_[n] = request_at(place);
          requests_[n].id.sequence = qp.window.sequence(static_cast<std::uint32_t>(n));
          place = next_[place];
        }
        if (n == 0) break;
        std::size_t const taken = fabric_->post(std::span(requests_).first(n));
        for (std::size_t i = 0; i < taken; ++i) {
          qp.window.posted(qp.waiting.first());
          qp.waiting.pop(next_);
        }
        waiting_ -= taken;
        if (taken != 0) count(counters_->posts), count(counters_->requests, taken);
        moved |= taken != 0;
        if (taken < n) {
          count(counters_->refusals);
          break;
        }
      }
    }
    return moved;
  }

  bool free(Ring& ring) {
    std::uint32_t n = 0;
    for (std::uint32_t at = ring.reader.oldest(); at != ring.reader.position(); ++at, ++n) {
      Place const place = ring.first + (at & (ring.reader.capacity() - 1));
      if (!ended_[place]) break;
      ended_[place] = false;
    }
    ring.reader.free(n);
    return n != 0;
  }

  [[nodiscard]] WorkRequest request_at(Place place) const noexcept {
    auto const after = [place](const Ring& ring) { return ring.first > place; };
    const Ring& ring = *(std::find_if(rings_.begin(), rings_.end(), after) - 1);
    return ring.reader.slot(place - ring.first).request();
  }

  void drop(Place place) noexcept {
    ended_[place] = true;
    count(counters_->dropped);
  }

  //! The first failed request of a peer takes with it what is not posted yet; what is in flight ends by itself.
  void fail(const Completion& completion) {
    int const peer = completion.id.peer;
    if (failed(peer)) return;
    Told& told = faults_[static_cast<std::size_t>(peer)];
    told.fault = {completion.id, completion.status};
    told.told.store(true, std::memory_order_release);
    if (on_fault_) on_fault_(told.fault);
    for (int i = 0; i < fabric_->queue_pairs(); ++i) {
      QueuePair& qp = queue_pairs_[static_cast<std::size_t>(peer * fabric_->queue_pairs() + i)];
      for (; !qp.waiting.empty(); qp.waiting.pop(next_), --waiting_) drop(qp.waiting.first());
    }
  }

  F* fabric_;
  OnFault on_fault_;
  std::vector<Ring> rings_;
  std::vector<Place> next_;  // by place
  std::vector<bool> ended_;  // by place
  std::size_t waiting_ = 0;  // commands, over all queue pairs
  std::vector<QueuePair> queue_pairs_;
  std::unique_ptr<Told[]> faults_;  // by peer
  std::unique_ptr<ProxyCounters> counters_;
  std::array<WorkRequest, kBatch> requests_;
  std::array<Completion, kBatch> completions_;
};

}  // namespace proxy
}  // namespace mori_ep::fabric
