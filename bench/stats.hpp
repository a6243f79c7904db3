// SPDX-License-Identifier: MIT
//! @file Samples of one phase: when each rank started and ended, and what is reported of them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace ep_bench {

//! @brief Microseconds of a clock that all threads and all processes of this machine share.
inline double now_us() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

//! @brief The smallest sample that at least `percent` % of the samples do not exceed; NaN when there is none.
inline double percentile(std::vector<double> samples, double percent) {
  if (samples.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(samples.begin(), samples.end());
  auto const rank = std::ceil(percent / 100.0 * static_cast<double>(samples.size()));
  return samples[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

struct Span {
  double begin_us = 0;
  double end_us = 0;
};

//! @brief [iterations, world] spans; each rank writes its own column.
class Spans {
 public:
  Spans(int iterations, int world)
      : world_(static_cast<std::size_t>(world)), spans_(static_cast<std::size_t>(iterations) * world_) {}
  //! @brief From one rank's column after the other's.
  [[nodiscard]] static Spans of_ranks(const std::vector<Span>& columns, int world) {
    auto const iterations = static_cast<int>(columns.size() / static_cast<std::size_t>(world));
    Spans out(iterations, world);
    auto next = columns.begin();
    for (int rank = 0; rank < world; ++rank)
      for (int i = 0; i < iterations; ++i) out.at(i, rank) = *next++;
    return out;
  }
  [[nodiscard]] Span& at(int iteration, int rank) {
    return spans_[static_cast<std::size_t>(iteration) * world_ + static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::size_t size() const { return spans_.size(); }
  [[nodiscard]] Span* data() { return spans_.data(); }

  //! @brief Per iteration: the last rank's end minus the first rank's start, so that skew counts.
  [[nodiscard]] std::vector<double> over_ranks_us() const {
    std::vector<double> out;
    for (std::size_t i = 0; i < spans_.size(); i += world_) {
      double begin = spans_[i].begin_us, end = spans_[i].end_us;
      for (std::size_t r = 1; r < world_; ++r) {
        begin = std::min(begin, spans_[i + r].begin_us);
        end = std::max(end, spans_[i + r].end_us);
      }
      out.push_back(end - begin);
    }
    return out;
  }
  //! @brief Per rank: the median of its own end minus its own start.
  [[nodiscard]] std::vector<double> rank_p50_us() const {
    std::vector<double> out;
    for (std::size_t r = 0; r < world_; ++r) {
      std::vector<double> own;
      for (std::size_t i = r; i < spans_.size(); i += world_) own.push_back(spans_[i].end_us - spans_[i].begin_us);
      out.push_back(percentile(std::move(own), 50));
    }
    return out;
  }

 private:
  std::size_t world_;
  std::vector<Span> spans_;
};

//! @brief What the report says of a phase.
struct Phase {
  std::vector<double> samples_us;
  std::vector<double> rank_p50_us;
  double bytes = 0;

  Phase() = default;
  Phase(const Spans& spans, double phase_bytes)
      : samples_us(spans.over_ranks_us()), rank_p50_us(spans.rank_p50_us()), bytes(phase_bytes) {}
  Phase(std::vector<double> samples, std::vector<double> of_ranks, double phase_bytes)
      : samples_us(std::move(samples)), rank_p50_us(std::move(of_ranks)), bytes(phase_bytes) {}
  [[nodiscard]] double p50_us() const { return percentile(samples_us, 50); }
  [[nodiscard]] double p99_us() const { return percentile(samples_us, 99); }
  [[nodiscard]] double min_us() const { return percentile(samples_us, 0); }
  [[nodiscard]] double gbps() const { return bytes / p50_us() / 1e3; }
};

struct Phases {
  Phase dispatch, combine, pair;
};

}  // namespace ep_bench
