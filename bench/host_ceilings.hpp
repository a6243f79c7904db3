// SPDX-License-Identifier: MIT
//! @file The ceilings: what memcpy, and plain loops that read and write as dispatch and combine do, move with as many
//!       threads as the ranks have cores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

#include "buffer.hpp"
#include "ceilings.hpp"
#include "machine.hpp"
#include "meeting.hpp"
#include "row_loop.hpp"
#include "stats.hpp"

namespace ep_bench {

//! @brief Samples memcpy and the row loops before and after the configurations, so that a machine that changes
//!        meanwhile shows.
class HostCeilings : public Ceilings {
 public:
  explicit HostCeilings(int world) : threads_(std::min(world, Machine::here().cores)) {
    long const cache = std::max(::sysconf(_SC_LEVEL3_CACHE_SIZE), 0L);
    // Twice the last-level cache for each of source and target, over all threads; less where memory is short.
    std::size_t const wanted = std::max<std::size_t>(std::size_t{1} << 30, 4 * static_cast<std::size_t>(cache));
    std::size_t const total = std::min(
        wanted, static_cast<std::size_t>(std::min(available_bytes(), address_space_left().value_or(INT64_MAX))) / 4);
    bytes_ = total / 2 / static_cast<std::size_t>(threads_) / 4096 * 4096;
    copiers = threads_;
    bytes_each = bytes_;
    how = "memcpy with " + std::to_string(threads_) + " threads of " + std::to_string(bytes_ >> 20) + " MiB each";
  }

  void measure() {
    Spans copies(kSamples, threads_), reads(kSamples, threads_), writes(kSamples, threads_);
    MeetingBoard board;
    std::vector<std::thread> threads;
    std::vector<Buffer<std::byte>> sources, targets;  // had here, where failing is an exception of the caller's
    for (int i = 0; i < threads_; ++i) {
      sources.emplace_back(bytes_, "a buffer of the memcpy ceiling");
      targets.emplace_back(bytes_, "a buffer of the memcpy ceiling");
    }
    auto const rows = [&](int i) {
      auto const at = static_cast<std::size_t>(i);
      return RowLoop(sources[at].data(), targets[at].data(), bytes_);
    };
    auto const work = [&](int i) {
      auto& source = sources[static_cast<std::size_t>(i)];
      auto& target = targets[static_cast<std::size_t>(i)];
      source.poison();
      target.poison();
      Meeting meeting(board, i, threads_);
      auto const sample = [&](Spans& spans, auto&& loop) {
        for (int n = 0; n < kSamples; ++n) {
          if (!meeting.wait()) return;
          double const begin = now_us();
          loop();
          asm volatile("" : : "r"(target.data()) : "memory");  // the copy is wanted though nobody reads it
          spans.at(n, i) = {begin, now_us()};
        }
      };
      RowLoop const loop = rows(i);
      sample(copies, [&] { std::memcpy(target.data(), source.data(), bytes_); });
      sample(writes, [&] { loop.read1_write5(); });
      sample(reads, [&] { loop.read5_write1(); });
    };
    try {
      for (int i = 0; i < threads_; ++i) threads.emplace_back(work, i);
    } catch (const std::system_error& error) {  // those that have started would wait for ever
      board.complain({.rank = static_cast<int>(threads.size()), .witness = -1, .exit_code = 1, .text = error.what()});
      for (auto& thread : threads) thread.join();
      throw;
    }
    for (auto& thread : threads) thread.join();
    auto const append = [&](std::vector<double>& gbps, const Spans& spans, double moved) {
      for (double us : spans.over_ranks_us()) gbps.push_back(moved * threads_ / us / 1e3);
    };
    append(memcpy_gbps, copies, 2.0 * static_cast<double>(bytes_));
    append(read1_write5_gbps, writes, rows(0).moved());
    append(read5_write1_gbps, reads, rows(0).moved());
  }

 private:
  static constexpr int kSamples = 7;
  int threads_;
  std::size_t bytes_ = 0;
};

}  // namespace ep_bench
