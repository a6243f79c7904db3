// SPDX-License-Identifier: MIT
//! @file How a Loopback behaves: its size, its faults, its speed.
#pragma once

#include <chrono>
#include <cstdint>

#include "mori_ep/error.hpp"

namespace mori_ep::fabric {

//! @brief The same on every rank. "One in n": 0 is never.
struct LoopbackOptions {
  int queue_pairs = 1;  //!< to each peer
  int depth = 128;      //!< requests that a queue pair holds

  std::uint64_t seed = 0;  //!< of all that follows; with the rank's number it makes each rank's luck
  bool reorder = false;    //!< what is posted arrives in any order that is allowed, long puts in two parts
  std::chrono::nanoseconds least_delay{0}, most_delay{0};  //!< from a request's post to its arrival
  std::chrono::nanoseconds most_late{0};                   //!< by which completions may come late
  int early_one_in = 0;      //!< requests that complete before they arrive, once their source has been read
  int duplicate_one_in = 0;  //!< completions that come twice
  int full_one_in = 0;       //!< posts that take fewer requests than there is room for

  //! A rank that stops after so many of its own requests: from then on nothing of what it posts or is sent arrives, and
  //! requests between it and others fail when they are `vanish_timeout` old.
  int vanishing_rank = -1;
  std::uint64_t vanishes_after = 0;
  std::chrono::nanoseconds vanish_timeout = std::chrono::milliseconds(100);

  //! A time model: each rank sends one byte after the other, and all of it is on its way for `latency`.
  std::chrono::nanoseconds latency{0};
  double gbps = 0;  //!< 10^9 bytes a second; 0: no limit

  friend bool operator==(const LoopbackOptions&, const LoopbackOptions&) = default;

  //! @brief Does a request arrive while it is posted, and nothing go wrong?
  [[nodiscard]] bool prompt() const noexcept {
    LoopbackOptions const none{.queue_pairs = queue_pairs, .depth = depth, .seed = seed};
    LoopbackOptions here = *this;
    here.vanish_timeout = none.vanish_timeout;
    return here == none;
  }

  [[nodiscard]] Status check(int rank, int world) const noexcept;
};

inline Status LoopbackOptions::check(int rank, int world) const noexcept {
  constexpr std::int64_t kMost = INT64_MAX;
  constexpr std::int64_t kLongest = std::chrono::nanoseconds(std::chrono::hours(1)).count();
  struct Field {
    const char* name;
    std::int64_t value, low, high;
  };
  for (const Field& f :
       {Field{"queue_pairs", queue_pairs, 1, 64}, Field{"depth", depth, 1, 4095},
        Field{"least_delay", least_delay.count(), 0, kLongest},
        Field{"most_delay", most_delay.count(), least_delay.count(), kLongest},
        Field{"most_late", most_late.count(), 0, kLongest}, Field{"early_one_in", early_one_in, 0, kMost},
        Field{"duplicate_one_in", duplicate_one_in, 0, kMost},
        Field{"full_one_in", full_one_in, full_one_in == 0 ? 0 : 2, kMost},
        Field{"vanishing_rank", vanishing_rank, -1, world - 1},
        Field{"vanish_timeout", vanish_timeout.count(), 0, kLongest}, Field{"latency", latency.count(), 0, kLongest},
        Field{"gbps", gbps >= 0 ? 0 : -1, 0, kMost}})
    if (f.value < f.low || f.value > f.high)
      return Error{.code = Errc::invalid_config,
                   .rank = rank,
                   .field = f.name,
                   .value = f.value,
                   .limit = f.value < f.low ? f.low : f.high,
                   .hint = "See fabric::LoopbackOptions. Times are at most an hour, here in nanoseconds."};
  return {};
}

}  // namespace mori_ep::fabric
