// SPDX-License-Identifier: MIT
//! @file How ranks find each other before there is shared memory: an all-gather of bytes and a barrier.
#pragma once

#include <cstddef>

#include "mori_ep/error.hpp"

namespace mori_ep::comm {

//! @brief Host-side collectives among the ranks of one world. Every rank calls each in the same order.
//!
//! Errors: a rank that does not come within the timeout gives `Errc::missing_rank` naming it, on every rank that came.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int world() const noexcept = 0;
  //! @brief Gathers `bytes` from every rank into `recv` [world * bytes], in rank order.
  virtual Status all_gather(const void* send, void* recv, std::size_t bytes) noexcept = 0;
  virtual Status barrier() noexcept = 0;
};

}  // namespace mori_ep::comm
