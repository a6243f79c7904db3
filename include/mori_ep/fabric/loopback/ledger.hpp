// SPDX-License-Identifier: MIT
//! @file What an endpoint's queue pairs hold, which of them have failed, and the completions that wait for a poll.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "mori_ep/error.hpp"
#include "mori_ep/fabric/counters.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/request_error.hpp"

namespace mori_ep::fabric::loopback {

using Time = std::chrono::steady_clock::time_point;

//! @brief A request that has ended.
struct Ended {
  WorkId id;
  std::uint32_t queue_pair = 0;  //!< its index in the ledger
  bool failed = false;
  bool again = false;       //!< a duplicate
  std::uint64_t taken = 0;  //!< duplicates: by the queue pair when the request ended for the first time
  Time since{};             //!< when it was taken
};

//! @brief All memory is taken at the start. Queue pairs are counted over peers; the last is for requests that name none.
class Ledger {
 public:
  struct QueuePair {
    std::uint32_t held = 0;        //!< requests taken and not yet given to a poll
    std::uint64_t taken = 0;       //!< ever
    std::unique_ptr<Error> error;  //!< once it has failed
  };

  Ledger(int rank, int world, int queue_pairs, int depth)
      : rank_(rank),
        world_(world),
        per_peer_(queue_pairs),
        depth_(static_cast<std::uint32_t>(depth)),
        queue_pairs_(static_cast<std::size_t>(world * queue_pairs) + 1),
        counters_(new Counters[static_cast<std::size_t>(world) + 1]),
        ended_(queue_pairs_.size() * depth_) {}

  [[nodiscard]] int per_peer() const noexcept { return per_peer_; }
  [[nodiscard]] std::uint32_t depth() const noexcept { return depth_; }
  [[nodiscard]] const Counters& counters(int peer) const noexcept { return counters_[static_cast<std::size_t>(peer)]; }
  [[nodiscard]] QueuePair& operator[](std::uint32_t index) noexcept { return queue_pairs_[index]; }
  [[nodiscard]] std::uint32_t nowhere() const noexcept { return static_cast<std::uint32_t>(queue_pairs_.size() - 1); }
  [[nodiscard]] std::uint32_t index_of(const WorkId& id) const noexcept {
    if (id.peer >= world_ || id.queue_pair >= per_peer_) return nowhere();
    return static_cast<std::uint32_t>(id.peer * per_peer_ + id.queue_pair);
  }

  void take(const WorkRequest& request, std::uint32_t queue_pair) noexcept {
    QueuePair& qp = queue_pairs_[queue_pair];
    ++qp.held;
    ++qp.taken;
    Counters& counters = counters_of(queue_pair);
    Counters::add(counters.messages, 1);
    if (request.id.operation != Operation::signal && qp.error == nullptr) Counters::add(counters.bytes, request.bytes);
  }
  void refuse(std::uint32_t queue_pair) noexcept { Counters::add(counters_of(queue_pair).refusals, 1); }
  void fail(std::uint32_t queue_pair, const Error& error) {
    if (queue_pairs_[queue_pair].error == nullptr) queue_pairs_[queue_pair].error = std::make_unique<Error>(error);
  }

  [[nodiscard]] bool has_room() const noexcept { return last_ - first_ < ended_.size(); }
  [[nodiscard]] bool waiting() const noexcept { return last_ != first_; }
  void end(const Ended& ended) noexcept { ended_[last_++ % ended_.size()] = ended; }

  //! @brief Gives completions; `seen(ended)` of each that comes for the first time.
  template <class Seen>
  std::size_t poll(std::span<Completion> into, Time now, Seen&& seen) {
    std::size_t n = 0;
    while (n < into.size() && waiting()) {
      Ended const ended = ended_[first_++ % ended_.size()];
      QueuePair& qp = queue_pairs_[ended.queue_pair];
      if (ended.again && qp.taken - ended.taken >= kLatestDuplicate) continue;
      Completion& given = into[n++];
      given.id = ended.id;
      // A Status is large: most of the time it is good and was so before.
      if (ended.failed || !given.status.ok()) given.status = ended.failed ? error_of(ended) : Status{};
      if (ended.again) continue;
      --qp.held;
      Counters& counters = counters_of(ended.queue_pair);
      Counters::add(ended.failed ? counters.errors : counters.completions, 1);
      counters.waited(static_cast<std::uint64_t>(std::chrono::nanoseconds(now - ended.since).count()));
      seen(ended);
    }
    return n;
  }

 private:
  [[nodiscard]] Counters& counters_of(std::uint32_t queue_pair) noexcept {
    return counters_[queue_pair / static_cast<std::uint32_t>(per_peer_)];
  }
  //! The queue pair's error; where that is the network's, for this request.
  [[nodiscard]] Status error_of(const Ended& ended) const {
    const Error& error = *queue_pairs_[ended.queue_pair].error;
    return error.code == Errc::fabric_error ? request_error(rank_, ended.id, error.value, error.hint) : error;
  }

  int rank_, world_, per_peer_;
  std::uint32_t depth_;
  std::vector<QueuePair> queue_pairs_;
  std::unique_ptr<Counters[]> counters_;  // by peer
  std::vector<Ended> ended_;  // a ring: each request that is held has a place, a duplicate where there is one
  std::size_t first_ = 0, last_ = 0;
};

}  // namespace mori_ep::fabric::loopback
