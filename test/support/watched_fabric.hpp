// SPDX-License-Identifier: MIT
//! @file A fabric that notes what is asked of it and what it answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::test {

//! @brief Forwards to another. Requests carry a number in their epoch, which is the order in which they were asked for
//!        on their ring, `number % rings`. complaint() says what was wrong first.
template <fabric::Fabric F>
class Watched {
 public:
  static constexpr const char* kName = F::kName;
  static constexpr fabric::Order kOrder = F::kOrder;
  static constexpr bool kHostCopies = F::kHostCopies;

  Watched(F& fabric, int rings) noexcept : fabric_(&fabric), rings_(static_cast<std::uint32_t>(rings)) {}

  [[nodiscard]] int rank() const noexcept { return fabric_->rank(); }
  [[nodiscard]] int world() const noexcept { return fabric_->world(); }
  [[nodiscard]] int queue_pairs() const noexcept { return fabric_->queue_pairs(); }
  [[nodiscard]] int depth() const noexcept { return fabric_->depth(); }
  [[nodiscard]] const fabric::Counters& counters(int peer) const noexcept { return fabric_->counters(peer); }

  //! @brief From here on nothing may be posted to `peer`.
  void forbid(int peer) { forbidden_.insert(peer); }

  std::size_t post(std::span<const fabric::WorkRequest> requests) {
    expect(!requests.empty(), "a post of nothing");
    expect(forbidden_.count(requests[0].id.peer) == 0, "a post to a peer that has failed");
    std::size_t const taken = fabric_->post(requests);
    for (const fabric::WorkRequest& r : requests) {
      expect(r.id.peer == requests[0].id.peer && r.id.queue_pair == requests[0].id.queue_pair, "two queue pairs");
      expect(r.id.epoch >= first_waiting(r.id), "posted again, or before one that was first");
    }
    auto& in_flight = in_flight_[{requests[0].id.peer, requests[0].id.queue_pair}];
    for (const fabric::WorkRequest& r : requests.first(taken)) {
      first_waiting(r.id) = r.id.epoch + 1;
      expect(in_flight.insert(r.id.sequence).second, "a sequence twice in flight");
      outstanding_.insert(r.id.packed());
    }
    expect(in_flight.size() <= static_cast<std::size_t>(depth()), "more in flight than the depth");
    return taken;
  }
  std::size_t poll(std::span<fabric::Completion> into) {
    std::size_t const n = fabric_->poll(into);
    for (const fabric::Completion& c : into.first(n)) {
      if (outstanding_.erase(c.id.packed()) == 0)
        ++duplicates_;
      else
        in_flight_[{c.id.peer, c.id.queue_pair}].erase(c.id.sequence);
    }
    return n;
  }

  [[nodiscard]] std::size_t outstanding() const noexcept { return outstanding_.size(); }
  [[nodiscard]] std::uint64_t duplicates() const noexcept { return duplicates_; }
  [[nodiscard]] const std::string& complaint() const noexcept { return complaint_; }

 private:
  void expect(bool right, const char* what) {
    if (!right && complaint_.empty()) complaint_ = what;
  }
  //! By queue pair and ring.
  [[nodiscard]] std::uint32_t& first_waiting(const fabric::WorkId& id) {
    return first_waiting_[{id.peer, id.queue_pair * rings_ + id.epoch % rings_}];
  }

  F* fabric_;
  std::uint32_t rings_;
  std::map<std::pair<int, std::uint32_t>, std::uint32_t> first_waiting_;
  std::map<std::pair<int, int>, std::set<int>> in_flight_;
  std::set<std::uint64_t> outstanding_;
  std::set<int> forbidden_;
  std::uint64_t duplicates_ = 0;
  std::string complaint_;
};

}  // namespace mori_ep::test
