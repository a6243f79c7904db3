// SPDX-License-Identifier: MIT
//! @file The SwiGLU experts of one rank: y = (silu(x w1) * (x w3)) w2 for every row that names them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mori_ep/exec/tensor_view.hpp"

namespace moe_layer {

//! @brief What all experts have in common. Weights are a function of the seed, so nobody has to store them for others.
struct ExpertModel {
  enum Matrix { w1, w3, w2 };

  int hidden = 0, intermediate = 0;
  std::uint64_t seed = 0;

  //! @brief Uniform in (-1, 1) from a hash of what it is for (splitmix64's finaliser).
  [[nodiscard]] static float noise(std::uint64_t seed, std::uint64_t a, std::uint64_t b) noexcept {
    std::uint64_t z = seed * 0x9E3779B97F4A7C15u + a * 0xD1B54A32D192ED03u + b * 0x8CB92BA72F3D8DD7u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return static_cast<float>(static_cast<std::int32_t>(z >> 32)) * 0x1p-31f;
  }
  //! @brief Scaled so that rows keep their size; each expert and matrix differs.
  [[nodiscard]] float weight(int expert, Matrix matrix, int in, int out) const noexcept {
    int const inputs = matrix == w2 ? intermediate : hidden;
    auto const place = static_cast<std::uint64_t>(in) << 32 | static_cast<std::uint64_t>(out);
    return noise(seed, static_cast<std::uint64_t>(expert) * 3 + matrix + 1, place) *
           std::sqrt(3.0f / static_cast<float>(inputs));
  }
};

//! @brief c[rows, cols] += a[rows, depth] w[depth, cols], all dense; depth a multiple of 8, cols of 16.
//!
//! Eight rows of w stay in the first cache while all rows of c pass over them. The innermost loop has a constant count
//! and no aliasing, which is what g++ 12 asks of a loop before it vectorises it at -O2.
inline void multiply_add(const float* __restrict a, const float* __restrict w, float* __restrict c, int rows, int depth,
                         int cols) noexcept {
  for (int d = 0; d < depth; d += 8) {
    const float* const w0 = w + static_cast<std::ptrdiff_t>(d) * cols;
    for (int r = 0; r < rows; ++r) {
      const float* const x = a + static_cast<std::ptrdiff_t>(r) * depth + d;
      float const x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3], x4 = x[4], x5 = x[5], x6 = x[6], x7 = x[7];
      for (int n = 0; n < cols; n += 16) {
        float* const y = c + static_cast<std::ptrdiff_t>(r) * cols + n;
        const float* const v = w0 + n;
        for (int j = 0; j < 16; ++j)
          y[j] += ((x0 * v[j] + x1 * v[j + cols]) + (x2 * v[j + 2 * cols] + x3 * v[j + 3 * cols])) +
                  ((x4 * v[j + 4 * cols] + x5 * v[j + 5 * cols]) + (x6 * v[j + 6 * cols] + x7 * v[j + 7 * cols]));
      }
    }
  }
}

//! @brief Experts [first, first + count). `run` allocates nothing: it is what the stream executes between dispatch and
//!        combine.
class LocalExperts {
 public:
  LocalExperts(const ExpertModel& model, int first, int count, std::int64_t max_rows, int topk)
      : hidden_(model.hidden),
        intermediate_(model.intermediate),
        first_(first),
        experts_(static_cast<std::size_t>(count)),
        begin_(static_cast<std::size_t>(count) + 1),
        entries_(static_cast<std::size_t>(max_rows * topk)),
        sums_(static_cast<std::size_t>(max_rows * hidden_)),
        x_(static_cast<std::size_t>(kBatch * hidden_)),
        gate_(static_cast<std::size_t>(kBatch * intermediate_)),
        up_(gate_.size()),
        y_(x_.size()) {
    for (int e = 0; e < count; ++e) {
      auto const fill = [&](std::vector<float>& w, ExpertModel::Matrix matrix, int inputs, int outputs) {
        w.resize(static_cast<std::size_t>(inputs) * static_cast<std::size_t>(outputs));
        for (int i = 0, at = 0; i < inputs; ++i)
          for (int o = 0; o < outputs; ++o, ++at) w[at] = model.weight(first + e, matrix, i, o);
      };
      fill(experts_[e].w1, ExpertModel::w1, hidden_, intermediate_);
      fill(experts_[e].w3, ExpertModel::w3, hidden_, intermediate_);
      fill(experts_[e].w2, ExpertModel::w2, intermediate_, hidden_);
    }
  }

  //! @brief out[r] = sum over the local experts e that row r names of weight * expert_e(rows[r]), r < recv_count.
  template <class T>
  void run(mori_ep::TensorView<const T> rows, mori_ep::TensorView<const std::int32_t> ids,
           mori_ep::TensorView<const float> weights, std::int32_t recv_count, mori_ep::TensorView<T> out) noexcept {
    group_by_expert(ids, weights, recv_count);
    std::fill_n(sums_.begin(), std::int64_t{recv_count} * hidden_, 0.0f);
    for (std::size_t e = 0; e < experts_.size(); ++e)
      for (int at = begin_[e]; at < begin_[e + 1]; at += kBatch)
        run_batch(experts_[e], rows, std::span(entries_).subspan(at, std::min(kBatch, begin_[e + 1] - at)));
    for (std::int32_t r = 0; r < recv_count; ++r) {
      const float* const sum = sums_.data() + std::int64_t{r} * hidden_;
      T* const y = out.row(r);
      for (int h = 0; h < hidden_; ++h) y[h] = static_cast<T>(sum[h]);
    }
  }

 private:
  static constexpr int kBatch = 16;  // rows of one expert whose inner results fit the second cache
  struct Expert {
    std::vector<float> w1, w3, w2;  // [inputs, outputs]
  };
  struct Entry {
    std::int32_t row;
    float weight;
  };

  void group_by_expert(mori_ep::TensorView<const std::int32_t> ids, mori_ep::TensorView<const float> weights,
                       std::int32_t recv_count) noexcept {
    auto const count = static_cast<std::int32_t>(experts_.size());
    auto const for_each_entry = [&](auto&& visit) {
      for (std::int32_t r = 0; r < recv_count; ++r)
        for (std::int64_t k = 0; k < ids.cols; ++k)
          if (std::int32_t const e = ids.row(r)[k] - first_; e >= 0 && e < count) visit(e, r, weights.row(r)[k]);
    };
    std::fill(begin_.begin(), begin_.end(), 0);
    for_each_entry([&](std::int32_t e, std::int32_t, float) { ++begin_[e]; });
    int end = 0;
    for (int& begin : begin_) begin = end += begin;  // the ends, from which the next pass counts down to the begins
    for_each_entry([&](std::int32_t e, std::int32_t r, float weight) { entries_[--begin_[e]] = {r, weight}; });
  }

  template <class T>
  void run_batch(const Expert& expert, mori_ep::TensorView<const T> rows, std::span<const Entry> batch) noexcept {
    auto const n = static_cast<int>(batch.size());
    for (int i = 0; i < n; ++i) {
      const T* const row = rows.row(batch[i].row);
      float* const x = x_.data() + std::ptrdiff_t{i} * hidden_;
      for (int h = 0; h < hidden_; ++h) x[h] = static_cast<float>(row[h]);
    }
    std::fill(gate_.begin(), gate_.end(), 0.0f);
    std::fill(up_.begin(), up_.end(), 0.0f);
    std::fill(y_.begin(), y_.end(), 0.0f);
    multiply_add(x_.data(), expert.w1.data(), gate_.data(), n, hidden_, intermediate_);
    multiply_add(x_.data(), expert.w3.data(), up_.data(), n, hidden_, intermediate_);
    for (int i = 0; i < n * intermediate_; ++i) gate_[i] *= up_[i] / (1.0f + std::exp(-gate_[i]));
    multiply_add(gate_.data(), expert.w2.data(), y_.data(), n, intermediate_, hidden_);
    for (int i = 0; i < n; ++i) {
      const float* const y = y_.data() + std::ptrdiff_t{i} * hidden_;
      float* const sum = sums_.data() + std::int64_t{batch[i].row} * hidden_;
      for (int h = 0; h < hidden_; ++h) sum[h] += batch[i].weight * y[h];
    }
  }

  int hidden_, intermediate_;
  std::int32_t first_;
  std::vector<Expert> experts_;
  std::vector<int> begin_;  // [count + 1] where each expert's entries begin
  std::vector<Entry> entries_;
  std::vector<float> sums_, x_, gate_, up_, y_;
};

}  // namespace moe_layer
