// SPDX-License-Identifier: MIT
//! @file The error of a request that a network did not carry: which one, to whom, of which call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mori_ep/error.hpp"
#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::fabric {

//! @param code what the network calls it, 0 where it has no number
//! @param why the network's own words, where it has any
[[nodiscard]] inline Error request_error(int rank, const WorkId& id, std::int64_t code, const char* hint,
                                         std::string_view why = {}) {
  return Error{.code = Errc::fabric_error,
               .rank = rank,
               .peer = id.peer,
               .field = "request",
               .value = code,
               .expected = id.epoch,
               .hint = hint}
      .with_text(std::string(name(id.operation)) + " of epoch " + std::to_string(id.epoch) + ", queue pair " +
                 std::to_string(id.queue_pair) + (why.empty() ? "" : ": ") + std::string(why));
}

}  // namespace mori_ep::fabric
