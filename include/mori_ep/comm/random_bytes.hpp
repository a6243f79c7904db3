// SPDX-License-Identifier: MIT
//! @file Random bytes for keys, secrets and names that nobody can guess.
#pragma once

#include <cerrno>
#include <cstddef>
#include <span>

#include <sys/random.h>

#include "mori_ep/comm/socket.hpp"
#include "mori_ep/error.hpp"

namespace mori_ep::comm {

//! @brief From the system, which takes no descriptor for it: there may be none left.
[[nodiscard]] inline Status draw(std::span<std::byte> into) noexcept {
  while (!into.empty()) {
    auto const n = ::getrandom(into.data(), into.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return system_error("getrandom");
    into = into.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

}  // namespace mori_ep::comm
