// SPDX-License-Identifier: MIT
//! @file What the machine moves at best: the figures that every rate of the report is compared with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "stats.hpp"

namespace ep_bench {

//! @brief One way to write a loop, and its median. Where there is a choice, the samples are those of the best.
struct Variant {
  std::string how;
  bool resident;  //!< all its blocks are on the device together, as a schedule's must be
  double gbps;
};

//! @brief What each of several devices moves over its links in one direction, all of them at once and to or from all
//!        others: samples in 10^9 bytes per second of the slowest device.
struct Links {
  std::vector<double> copy_gbps;  //!< the copy engines
  std::vector<double> push_gbps;  //!< kernels that read a vector once and store it to every other device
  std::vector<double> pull_gbps;  //!< kernels that read and add the vectors of all other devices
  std::string push_how, pull_how;
  std::vector<Variant> push_tried, pull_tried;  //!< the last time

  [[nodiscard]] bool measured() const { return !push_gbps.empty(); }
  [[nodiscard]] double copy() const { return percentile(copy_gbps, 50); }
  [[nodiscard]] double push() const { return percentile(push_gbps, 50); }
  [[nodiscard]] double pull() const { return percentile(pull_gbps, 50); }
};

//! @brief Samples in 10^9 bytes per second, read + written.
struct Ceilings {
  std::string how;  //!< what copied how much, in a few words
  int copiers = 0;  //!< threads, or devices
  std::size_t bytes_each = 0;
  using Tried = std::vector<Variant>;
  std::string read1_write5_how, read5_write1_how;
  Tried read1_write5_tried, read5_write1_tried;  //!< the last time
  std::vector<double> memcpy_gbps, read1_write5_gbps, read5_write1_gbps;
  Links links;  //!< where there are several devices

  //! @brief Of memcpy, which every `ratio` is to.
  [[nodiscard]] double gbps() const { return percentile(memcpy_gbps, 50); }
  [[nodiscard]] double read1_write5() const { return percentile(read1_write5_gbps, 50); }
  [[nodiscard]] double read5_write1() const { return percentile(read5_write1_gbps, 50); }
  //! @brief The best of those whose blocks are resident together; 0 when there was no choice.
  [[nodiscard]] static double resident(const Tried& tried) {
    double best = 0;
    for (auto const& variant : tried)
      if (variant.resident) best = std::max(best, variant.gbps);
    return best;
  }
};

}  // namespace ep_bench
