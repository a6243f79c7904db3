// SPDX-License-Identifier: MIT
//! @file What the machine moves at best: the figures that every rate of the report is compared with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "stats.hpp"

namespace ep_bench {

//! @brief Samples in 10^9 bytes per second, read + written.
struct Ceilings {
  std::string how;  //!< what copied how much, in a few words
  int copiers = 0;  //!< threads, or devices
  std::size_t bytes_each = 0;
  //! One way to write a loop, and its median. Where there is a choice, the samples above are those of the best.
  struct Variant {
    std::string how;
    bool resident;  //!< all its blocks are on the device together, as a schedule's must be
    double gbps;
  };
  using Tried = std::vector<Variant>;
  std::string read1_write5_how, read5_write1_how;
  Tried read1_write5_tried, read5_write1_tried;  //!< the last time
  std::vector<double> memcpy_gbps, read1_write5_gbps, read5_write1_gbps;

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
