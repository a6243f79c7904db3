// SPDX-License-Identifier: MIT
//! @file Communicator: who I am, who else there is, and how the ranks are grouped into nodes.
#pragma once

#include <memory>
#include <utility>

#include "mori_ep/comm/bootstrap.hpp"

namespace mori_ep::comm {

//! @brief A rank's membership in a world. Cheap to copy; copies are the same member.
//!
//! Ranks [n * gpu_per_node, (n + 1) * gpu_per_node) form node n; the last node may be smaller. The grouping may be
//! given, so that one machine can stand for several nodes.
class Communicator {
 public:
  Communicator(std::shared_ptr<Bootstrap> bootstrap, int gpu_per_node, int ranks_in_process) noexcept
      : bootstrap_(std::move(bootstrap)), gpu_per_node_(gpu_per_node), ranks_in_process_(ranks_in_process) {}

  [[nodiscard]] int rank() const noexcept { return bootstrap_->rank(); }
  [[nodiscard]] int world() const noexcept { return bootstrap_->world(); }
  [[nodiscard]] int gpu_per_node() const noexcept { return gpu_per_node_; }
  [[nodiscard]] int node() const noexcept { return rank() / gpu_per_node_; }
  [[nodiscard]] int nodes() const noexcept { return (world() + gpu_per_node_ - 1) / gpu_per_node_; }
  //! @brief How many ranks of the world share this process (and so its cores).
  [[nodiscard]] int ranks_in_process() const noexcept { return ranks_in_process_; }

  //! @brief Collective, host thread. Errors as Bootstrap says.
  Status all_gather(const void* send, void* recv, std::size_t bytes) const noexcept {
    return bootstrap_->all_gather(send, recv, bytes);
  }
  Status barrier() const noexcept { return bootstrap_->barrier(); }

 private:
  std::shared_ptr<Bootstrap> bootstrap_;
  int gpu_per_node_;
  int ranks_in_process_;
};

}  // namespace mori_ep::comm
