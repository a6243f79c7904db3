// SPDX-License-Identifier: MIT
//! @file Payload that says where it comes from, experts that all differ, and the checks of what came out.
//!
//! A token's row is unlike any other's (its first four elements spell rank and token), and expert e answers a row x
//! with w * (1 + e / E) * (x rotated by e elements), so a row that went astray, was lost, came twice or met the wrong
//! expert cannot cancel. What is expected is computed here from the routes alone, in plain loops, in double precision.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "mori_ep/numeric/element.hpp"
#include "problem.hpp"

namespace ep_bench {

//! @brief The rows of all tokens, from a seed. Elements are +-(1 + m / 128): exact in every element type.
template <mori_ep::Element T>
class Payload {
 public:
  Payload(std::uint64_t seed, const Config& config)
      : seed_(seed), hidden_(static_cast<std::size_t>(config.hidden)), tokens_(config.tokens) {
    for (std::size_t b = 0; b < values_.size(); ++b) {
      float const magnitude = 1.0f + static_cast<float>(b & 127) / 128.0f;
      values_[b] = T((b & 128) != 0 ? -magnitude : magnitude);
    }
  }
  void row(int rank, int token, T* out) const {
    auto const position =
        static_cast<std::uint32_t>(rank) * static_cast<std::uint32_t>(tokens_) + static_cast<std::uint32_t>(token);
    for (std::size_t h = 0; h < hidden_; h += 4) {
      std::uint32_t const word = h == 0 ? position : hash(position, h);
      for (std::size_t i = 0; i < 4; ++i) out[h + i] = values_[(word >> (8 * i)) & 0xff];
    }
  }

 private:
  [[nodiscard]] std::uint32_t hash(std::uint32_t position, std::size_t h) const {
    std::uint64_t z = seed_ + ((std::uint64_t{position} << 32) | h) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::uint32_t>(z >> 32);
  }
  std::uint64_t seed_;
  std::size_t hidden_;
  int tokens_;
  std::array<T, 256> values_;
};

//! @brief What a rank got from a dispatch, by whatever means.
template <mori_ep::Element T>
struct Received {
  std::int64_t count = 0;
  const T* rows = nullptr;                     //!< [count, H]
  const std::int32_t* ids = nullptr;           //!< [count, K]
  const float* weights = nullptr;              //!< [count, K]
  const std::int32_t* sources = nullptr;       //!< [count] rank * tokens + token
  const std::int32_t* expert_count = nullptr;  //!< [E_r], or nullptr: not counted
};

//! @brief Of rows that travel as they are.
inline double no_error(double) { return 0; }

//! @brief Each check returns what differs first, or an empty string.
template <mori_ep::Element T>
class Verifier {
 public:
  //! @brief How far elements may be off by what a wire format does, where the largest of their row is given.
  using Error = double (*)(double largest);
  Verifier(const Problem& problem, std::uint64_t payload_seed, Error dispatch_error, Error combine_error)
      : problem_(problem),
        config_(problem.config()),
        payload_(payload_seed, config_),
        dispatch_error_(dispatch_error(kLargest)),
        combine_error_(combine_error) {}

  void fill_input(int rank, T* x) const {
    for (int t = 0; t < config_.tokens; ++t) payload_.row(rank, t, x + offset(t));
  }
  [[nodiscard]] std::string check_input(int rank, const T* x) const {
    std::vector<T> row(hidden());
    for (int t = 0; t < config_.tokens; ++t) {
      payload_.row(rank, t, row.data());
      if (auto at = differing(x + offset(t), row.data()); at < hidden())
        return "input was changed: rank " + str(rank) + ", token " + str(t) + ", " + element(x + offset(t), row, at);
    }
    return {};
  }

  [[nodiscard]] std::string check_dispatched(int rank, const Received<T>& got) const {
    auto const& sources = problem_.received(rank);
    if (got.count != static_cast<std::int64_t>(sources.size()))
      return "dispatch: rank " + str(rank) + " received " + str(got.count) + " rows, expected " + str(sources.size());
    std::vector<T> row(hidden());
    std::vector<std::int32_t> per_expert(static_cast<std::size_t>(config_.experts_per_rank()));
    auto const k = static_cast<std::size_t>(config_.topk);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      int const source = sources[i].rank, token = sources[i].token;
      auto const where = [&] {
        return "dispatch: rank " + str(rank) + ", row " + str(i) + " (from rank " + str(source) + ", token " +
               str(token) + "), ";
      };
      if (got.sources[i] != source * config_.tokens + token)
        return where() + "source position: got " + str(got.sources[i] / config_.tokens) + ":" +
               str(got.sources[i] % config_.tokens) + ", expected " + str(source) + ":" + str(token);
      payload_.row(source, token, row.data());
      const T* got_row = got.rows + i * hidden();
      if (auto at = too_far(got_row, row.data()); at < hidden()) return where() + element(got_row, row, at);
      const std::int32_t* ids = problem_.ids(source, token);
      const float* weights = problem_.weights(source, token);
      for (std::size_t j = 0; j < k; ++j) {
        if (got.ids[i * k + j] != ids[j])
          return where() + "id " + str(j) + ": got " + str(got.ids[i * k + j]) + ", expected " + str(ids[j]);
        if (std::memcmp(&got.weights[i * k + j], &weights[j], sizeof(float)) != 0)
          return where() + "weight " + str(j) + ": got " + str(got.weights[i * k + j]) + ", expected " +
                 str(weights[j]);
        bool first = problem_.owner(ids[j]) == rank;
        for (std::size_t before = 0; before < j; ++before) first = first && ids[before] != ids[j];
        if (first) ++per_expert[static_cast<std::size_t>(ids[j] - rank * config_.experts_per_rank())];
      }
    }
    for (std::size_t e = 0; got.expert_count != nullptr && e < per_expert.size(); ++e)
      if (got.expert_count[e] != per_expert[e])
        return "dispatch: rank " + str(rank) + ", local expert " + str(e) + " counts " + str(got.expert_count[e]) +
               " rows, expected " + str(per_expert[e]);
    return {};
  }

  //! @brief The experts of `rank`: weighted and summed over those that live there, by what arrived with the row.
  void apply_experts(int rank, const Received<T>& got, T* out) const {
    std::vector<float> x(2 * hidden()), sum(hidden());
    for (std::int64_t i = 0; i < got.count; ++i) {
      const T* row = got.rows + static_cast<std::size_t>(i) * hidden();
      for (std::size_t h = 0; h < hidden(); ++h) x[h] = x[h + hidden()] = static_cast<float>(row[h]);
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (std::int64_t k = 0; k < config_.topk; ++k) {
        std::int32_t const e = got.ids[i * config_.topk + k];
        if (problem_.owner(e) != rank) continue;
        float const factor =
            got.weights[i * config_.topk + k] * (1.0f + static_cast<float>(e) / static_cast<float>(config_.experts));
        const float* rotated = x.data() + e % config_.hidden;
        for (std::size_t h = 0; h < hidden(); ++h) sum[h] += factor * rotated[h];
      }
      T* to = out + static_cast<std::size_t>(i) * hidden();
      for (std::size_t h = 0; h < hidden(); ++h) to[h] = T(sum[h]);
    }
  }

  //! @brief y[t] against the sum over ranks of their experts' answers, within what the element type can hold:
  //!        each rank's row is rounded once, the sum once more, and fp32 adds and multiplies in between; relays round the
  //!        sum of their node, too.
  [[nodiscard]] std::string check_combined(int rank, const T* y) const {
    double const dispatch_error = dispatch_error_;
    double const unit = std::is_same_v<T, float> ? 0x1p-24 : std::is_same_v<T, mori_ep::bf16> ? 0x1p-8 : 0x1p-11;
    double const smallest = std::is_same_v<T, mori_ep::fp16> ? 0x1p-24 * config_.topk : 0.0;  // denormals
    double const fp32 = 0x1p-24 * 2 * (config_.topk + 4);
    std::vector<T> row(hidden());
    bool const relays = config_.schedule == "v1" && !std::is_same_v<T, float>;
    std::vector<double> x(2 * hidden()), of_rank(hidden()), sum(hidden()), magnitude(hidden()), terms(hidden()),
        relayed(hidden());
    for (int t = 0; t < config_.tokens; ++t) {
      payload_.row(rank, t, row.data());
      for (std::size_t h = 0; h < hidden(); ++h)
        x[h] = x[h + hidden()] = static_cast<double>(static_cast<float>(row[h]));
      for (auto* v : {&sum, &magnitude, &terms, &relayed}) std::fill(v->begin(), v->end(), 0.0);
      double coded = 0, coded2 = 0, excess2 = 0;  // what coding may add there and back, the squares, and what was added
      for (int d = 0; d < config_.world; ++d) {
        if (!problem_.goes_to(rank, t, d)) continue;
        std::fill(of_rank.begin(), of_rank.end(), 0.0);
        for (int k = 0; k < config_.topk; ++k) {
          int const e = problem_.ids(rank, t)[k];
          if (problem_.owner(e) != d) continue;
          double const factor = problem_.weights(rank, t)[k] * (1.0 + static_cast<double>(e) / config_.experts);
          const double* rotated = x.data() + e % config_.hidden;
          coded += std::abs(factor) * dispatch_error;
          coded2 += factor * factor * dispatch_error * dispatch_error;
          for (std::size_t h = 0; h < hidden(); ++h) {
            of_rank[h] += factor * rotated[h];
            terms[h] += std::abs(factor * rotated[h]);
          }
        }
        double largest = 0;
        for (double v : of_rank) largest = std::max(largest, std::abs(v));
        double const of_combine = combine_error_(largest + coded);
        coded += of_combine;
        coded2 += of_combine * of_combine;
        for (std::size_t h = 0; h < hidden(); ++h) {
          sum[h] += of_rank[h];
          magnitude[h] += std::abs(of_rank[h]);
          if (relays && config_.node_of(d) != config_.node_of(rank)) relayed[h] += std::abs(of_rank[h]);
        }
      }
      for (std::size_t h = 0; h < hidden(); ++h) {
        double const got = static_cast<double>(static_cast<float>(y[offset(t) + h]));
        double const allowed = unit * ((1 + unit) * (magnitude[h] + (1 + unit) * relayed[h]) + std::abs(sum[h])) +
                               (1 + unit) * fp32 * terms[h] + (relays ? 2 : 1) * smallest;
        double const error = std::abs(got - sum[h]), excess = error > allowed ? error - allowed : 0;
        excess2 += excess * excess;
        if (!(error <= allowed + (1 + 3 * unit) * coded))
          return "combine: rank " + str(rank) + ", token " + str(t) + ", element " + str(h) + ": got " + str(got) +
                 ", expected " + str(sum[h]) + " +- " + str(allowed + coded);
      }
      // Errors of coding are as even as the steps between codes: a row that was lost, or came twice, is larger than they
      // are together, even where it is not larger than the worst of them.
      double const most2 = static_cast<double>(hidden()) * coded2 / 3;
      if (coded != 0 && !(excess2 <= most2))
        return "combine: rank " + str(rank) + ", token " + str(t) + ": the norm of its row's error is " +
               str(std::sqrt(excess2)) + ", expected at most " + str(std::sqrt(most2));
    }
    return {};
  }

 private:
  template <class V>
  static std::string str(V value) {
    if constexpr (std::is_integral_v<V>) return std::to_string(value);
    char text[32];
    std::snprintf(text, sizeof(text), "%.9g", static_cast<double>(value));
    return text;
  }
  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(config_.hidden); }
  [[nodiscard]] std::size_t offset(int token) const { return static_cast<std::size_t>(token) * hidden(); }
  //! The first element whose bits differ, or H.
  [[nodiscard]] std::size_t differing(const T* got, const T* expected) const {
    if (std::memcmp(got, expected, hidden() * sizeof(T)) == 0) return hidden();
    std::size_t at = 0;
    while (std::memcmp(got + at, expected + at, sizeof(T)) == 0) ++at;
    return at;
  }
  //! The first element that is further off than the format allows, or H.
  [[nodiscard]] std::size_t too_far(const T* got, const T* expected) const {
    if (dispatch_error_ == 0) return differing(got, expected);
    std::size_t at = 0;
    while (at < hidden() && std::abs(static_cast<double>(static_cast<float>(got[at])) -
                                     static_cast<double>(static_cast<float>(expected[at]))) <= dispatch_error_)
      ++at;
    return at;
  }
  static std::string element(const T* got, const std::vector<T>& expected, std::size_t at) {
    return "element " + str(at) + ": got " + str(static_cast<float>(got[at])) + ", expected " +
           str(static_cast<float>(expected[at]));
  }

  const Problem& problem_;
  const Config& config_;
  Payload<T> payload_;
  static constexpr double kLargest = 2;  // of payload
  double dispatch_error_;
  Error combine_error_;
};

}  // namespace ep_bench
