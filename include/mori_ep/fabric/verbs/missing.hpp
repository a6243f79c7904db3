// SPDX-License-Identifier: MIT
//! @file fabric::Verbs of a program that was compiled where libibverbs has no header: an error that says so.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/verbs/options.hpp"

namespace mori_ep::fabric {

//! @brief Keeps the shape of the one that connects, so that what names it compiles anywhere. There is never one.
class VerbsMissing {
 public:
  using Arena = verbs::Arena;
  using Options = verbs::Options;
  static constexpr bool kHostCopies = false;
  static constexpr const char* kName = "verbs";
  static constexpr Order kOrder = Order::in_queue_pair;

  //! @brief Not collective: ranks that were compiled otherwise get missing_rank.
  static Result<VerbsMissing> connect(const comm::Communicator& comm, const Arena&, const Options& = {}) noexcept {
    return Error{.code = Errc::fabric_error,
                 .phase = Phase::create,
                 .rank = comm.rank(),
                 .field = "<infiniband/verbs.h>",
                 .hint =
                     "Install it where the program is compiled. Debian, Ubuntu: apt-get install libibverbs-dev. "
                     "RHEL: rdma-core-devel."}
        .with_text("missing");
  }
  static Result<VerbsMissing> connect(const comm::Communicator& comm, std::span<std::byte>, std::span<std::byte>,
                                      std::shared_ptr<const void>, const Options& = {},
                                      const exec::Dmabuf& = {}) noexcept {
    return connect(comm, Arena{});
  }
  [[nodiscard]] int rank() const noexcept { return 0; }
  [[nodiscard]] int world() const noexcept { return 0; }
  [[nodiscard]] int queue_pairs() const noexcept { return 0; }
  [[nodiscard]] int depth() const noexcept { return 0; }
  [[nodiscard]] std::size_t post(std::span<const WorkRequest>) noexcept { return 0; }
  [[nodiscard]] std::size_t poll(std::span<Completion>) noexcept { return 0; }
  [[nodiscard]] const Counters& counters(int) const noexcept { return *counters_; }

 private:
  VerbsMissing() = default;
  std::unique_ptr<Counters> counters_;
};
static_assert(Fabric<VerbsMissing>);

}  // namespace mori_ep::fabric
