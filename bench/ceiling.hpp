// SPDX-License-Identifier: MIT
//! @file The ceiling: what plain memcpy moves with as many threads as the ranks have cores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <thread>
#include <vector>

#include <unistd.h>

#include "buffer.hpp"
#include "machine.hpp"
#include "meeting.hpp"
#include "stats.hpp"

namespace ep_bench {

//! @brief Samples memcpy before and after the configurations, so that a machine that changes meanwhile shows.
class Ceiling {
 public:
  explicit Ceiling(int world) : threads_(std::min(world, Machine::here().cores)) {
    long const cache = std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
    // Twice the last-level cache for each of source and target, over all threads; less where memory is short.
    std::size_t const wanted = std::max<std::size_t>(std::size_t{1} << 30, 4 * static_cast<std::size_t>(cache));
    std::size_t const total = std::min(wanted, static_cast<std::size_t>(available_bytes()) / 4);
    bytes_ = total / 2 / static_cast<std::size_t>(threads_) / 4096 * 4096;
  }

  void measure() {
    constexpr int kCopies = 7;
    Spans spans(kCopies, threads_);
    Meeting meeting(threads_);
    std::vector<std::thread> threads;
    std::vector<Buffer<std::byte>> sources, targets;  // had here, where failing is an exception of the caller's
    for (int i = 0; i < threads_; ++i) {
      sources.emplace_back(bytes_);
      targets.emplace_back(bytes_);
    }
    for (int i = 0; i < threads_; ++i)
      threads.emplace_back([&, i] {
        auto& source = sources[static_cast<std::size_t>(i)];
        auto& target = targets[static_cast<std::size_t>(i)];
        source.poison();
        target.poison();
        for (int copy = 0; copy < kCopies; ++copy) {
          if (!meeting.wait()) return;
          double const begin = now_us();
          std::memcpy(target.data(), source.data(), bytes_);
          asm volatile("" : : "r"(target.data()) : "memory");  // the copy is wanted though nobody reads it
          spans.at(copy, i) = {begin, now_us()};
        }
      });
    for (auto& thread : threads) thread.join();
    double const moved = 2.0 * static_cast<double>(bytes_) * threads_;
    for (double us : spans.over_ranks_us()) gbps_.push_back(moved / us / 1e3);
  }

  [[nodiscard]] int threads() const { return threads_; }
  [[nodiscard]] std::size_t bytes_per_thread() const { return bytes_; }
  [[nodiscard]] double gbps() const { return percentile(gbps_, 50); }
  [[nodiscard]] const std::vector<double>& samples_gbps() const { return gbps_; }

 private:
  int threads_;
  std::size_t bytes_ = 0;
  std::vector<double> gbps_;
};

}  // namespace ep_bench
