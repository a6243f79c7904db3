// SPDX-License-Identifier: MIT
//! @file Communicator: who I am, who else there is, where they are, and how the ranks are grouped into nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mori_ep/comm/bootstrap.hpp"
#include "mori_ep/comm/heap_budget.hpp"
#include "mori_ep/comm/location.hpp"
#include "mori_ep/env.hpp"

namespace mori_ep::comm {

//! @brief A rank's membership in a world. Cheap to copy; copies are the same member.
//!
//! Ranks [n * gpu_per_node, (n + 1) * gpu_per_node) form node n; the last node may be smaller. The grouping may be
//! given, so that one machine can stand for several nodes.
class Communicator {
 public:
  //! @brief Ranks that are threads of this process.
  Communicator(std::shared_ptr<Bootstrap> bootstrap, int gpu_per_node, const Environment& environment = {})
      : Communicator(std::move(bootstrap), {}, gpu_per_node, {}, std::make_shared<HeapBudget>(environment)) {}

  //! @brief Collective: exchanges where the ranks are. `gpu_per_node` 0 groups them by their hosts (by MORI_NODE_ID
  //!        where it is set), which must hold consecutive ranks, as many each but for the last. Of `environment` the
  //!        node's name and the heap's limit count here.
  static Result<Communicator> create(std::shared_ptr<Bootstrap> bootstrap, const Environment& environment = {},
                                     int gpu_per_node = 0) noexcept {
    if (bootstrap == nullptr)
      return Error{.code = Errc::invalid_argument,
                   .field = "bootstrap",
                   .value = 0,
                   .hint = "Give what join_tcp() or another join gave."};
    struct Entry {
      Location location;
      std::int32_t gpu_per_node = 0, reserved = 0;
    };
    Entry const mine{.location = Location::here(environment.node_id.view()), .gpu_per_node = gpu_per_node};
    std::vector<int> const everyone = all_ranks(bootstrap->world());
    std::vector<Entry> entries(everyone.size());
    if (Status s = bootstrap->all_gather(everyone, &mine, entries.data(), sizeof(mine)); !s.ok()) return s;
    std::vector<Location> locations;
    for (const Entry& entry : entries) {
      if (entry.gpu_per_node != entries.front().gpu_per_node)
        return Error{.code = Errc::config_mismatch,
                     .phase = Phase::join,
                     .rank = static_cast<int>(&entry - entries.data()),
                     .peer = 0,
                     .field = "gpu_per_node",
                     .value = entry.gpu_per_node,
                     .limit = entries.front().gpu_per_node,
                     .hint = "Every rank must be given the value of rank 0: sums are made node by node."};
      locations.push_back(entry.location);
    }
    auto grouped = group(locations, bootstrap->rank(), gpu_per_node);
    if (!grouped.ok()) return grouped.status();
    return Communicator(std::move(bootstrap), {}, *grouped, std::move(locations),
                        std::make_shared<HeapBudget>(environment));
  }

  //! @brief The communicator of some ranks of this one: an expert group inside a larger world. `members` are ascending
  //!        ranks of this communicator; member i is rank i there. Only members call it, each with the same members.
  //!        Nodes stay what they are here unless `gpu_per_node` is given; then they must hold equally many members.
  [[nodiscard]] Result<Communicator> sub(std::span<const int> members, int gpu_per_node = 0) const {
    if (auto const me = place_of(members, rank(), world()); !me.ok()) return me.status();
    std::vector<int> ranks;
    std::vector<Location> locations;
    std::vector<std::uint64_t> nodes;
    for (int member : members) {
      ranks.push_back(base_rank(member));
      nodes.push_back(static_cast<std::uint64_t>(node_of(member)));
      if (!locations_.empty()) locations.push_back(locations_[static_cast<std::size_t>(member)]);
    }
    auto grouped = group_of(nodes, rank(), gpu_per_node);
    if (!grouped.ok()) return grouped.status();
    return Communicator(bootstrap_, std::move(ranks), *grouped, std::move(locations), heap_);
  }

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int world() const noexcept { return static_cast<int>(members_.size()); }
  [[nodiscard]] int gpu_per_node() const noexcept { return gpu_per_node_; }
  [[nodiscard]] int node() const noexcept { return node_of(rank()); }
  [[nodiscard]] int node_of(int rank) const noexcept { return rank / gpu_per_node_; }
  [[nodiscard]] int nodes() const noexcept { return (world() + gpu_per_node_ - 1) / gpu_per_node_; }
  //! @brief How many ranks of the world share this host (and so its cores).
  [[nodiscard]] int ranks_on_host() const noexcept { return ranks_on_host_; }
  //! @brief Does `rank` live in this process, so that an address means the same to both?
  [[nodiscard]] bool in_process(int rank) const noexcept {
    return locations_.empty() || location(rank).process == location(rank_).process;
  }
  [[nodiscard]] bool on_host(int rank) const noexcept {
    return locations_.empty() || location(rank).host == location(rank_).host;
  }
  [[nodiscard]] Location location() const noexcept { return locations_.empty() ? Location{} : location(rank_); }
  //! @brief The bound on collective host calls.
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept { return bootstrap_->timeout(); }
  //! @brief What this member's symmetric heaps may take.
  [[nodiscard]] const std::shared_ptr<HeapBudget>& heap() const noexcept { return heap_; }
  //! @brief Are all of `ranks` threads of this process?
  [[nodiscard]] bool in_process(std::span<const int> ranks) const noexcept {
    for (int r : ranks)
      if (!in_process(r)) return false;
    return true;
  }

  //! @brief Collective, host thread. Errors as Bootstrap says, ranks counted as here.
  Status all_gather(const void* send, void* recv, std::size_t bytes) const noexcept {
    return as_here(bootstrap_->all_gather(members_, send, recv, bytes));
  }
  Status barrier() const noexcept { return all_gather(nullptr, nullptr, 0); }
  //! @brief The same among some ranks of this communicator, ascending; only they call it. `within`: a timeout of this
  //!        call's own.
  Status all_gather(std::span<const int> among, const void* send, void* recv, std::size_t bytes,
                    std::chrono::nanoseconds within) const {
    std::vector<int> ranks;
    for (int r : among) {
      if (r < 0 || r >= world()) return place_of(among, rank(), world()).status();
      ranks.push_back(base_rank(r));
    }
    return as_here(bootstrap_->all_gather(ranks, send, recv, bytes, within));
  }
  Status all_gather(std::span<const int> among, const void* send, void* recv, std::size_t bytes) const {
    return all_gather(among, send, recv, bytes, timeout());
  }

 private:
  Communicator(std::shared_ptr<Bootstrap> bootstrap, std::vector<int> members, int gpu_per_node,
               std::vector<Location> locations, std::shared_ptr<HeapBudget> heap) noexcept
      : bootstrap_(std::move(bootstrap)),
        members_(members.empty() ? all_ranks(bootstrap_->world()) : std::move(members)),
        locations_(std::move(locations)),
        heap_(std::move(heap)),
        gpu_per_node_(gpu_per_node > 0 ? gpu_per_node : static_cast<int>(members_.size())) {
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (members_[i] == bootstrap_->rank()) rank_ = static_cast<int>(i);
    ranks_on_host_ = 0;
    for (int r = 0; r < world(); ++r) ranks_on_host_ += on_host(r) ? 1 : 0;
  }

  [[nodiscard]] const Location& location(int rank) const noexcept { return locations_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int base_rank(int rank) const noexcept { return members_[static_cast<std::size_t>(rank)]; }
  //! An error's ranks as this communicator counts them.
  [[nodiscard]] Status as_here(const Status& status) const noexcept {
    if (status.ok() || static_cast<int>(members_.size()) == bootstrap_->world()) return status;
    Error error = status.error();
    auto const here = [&](int rank) {
      for (std::size_t i = 0; i < members_.size(); ++i)
        if (members_[i] == rank) return static_cast<int>(i);
      return rank;
    };
    error.rank = here(error.rank);
    error.peer = here(error.peer);
    std::vector<int> listed;
    bool cut = false;  // the text ended in dots, perhaps inside a number
    for (const char* at = error.text; *at >= '0' && *at <= '9';) {
      int rank = 0;
      for (; *at >= '0' && *at <= '9'; ++at) rank = 10 * rank + (*at - '0');
      cut = *at == '.';
      if (!cut) listed.push_back(here(rank));
      while (*at == ',' || *at == ' ') ++at;
      cut = cut || *at == '.';
    }
    if (listed.empty()) return error;
    std::string text = list_of(listed);
    if (cut) text += ", ...";
    return error.with_text(text);
  }

  std::shared_ptr<Bootstrap> bootstrap_;
  std::vector<int> members_;          // ranks of the bootstrap
  std::vector<Location> locations_;   // by rank; empty: all in this process
  std::shared_ptr<HeapBudget> heap_;  // shared with copies and groups
  int gpu_per_node_;
  int rank_ = 0;
  int ranks_on_host_ = 1;
};

}  // namespace mori_ep::comm
