// SPDX-License-Identifier: MIT
//! @file The same work without a library, as people write it: pack, MPI_Alltoallv, unpack; and back.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include <mpi.h>

#include "buffer.hpp"
#include "mori_ep/exec/host/rows.hpp"
#include "mori_ep/exec/host/stream.hpp"
#include "problem.hpp"
#include "verify.hpp"

namespace ep_bench {

//! @brief An MPI datatype of so many bytes: counts stay counts of rows and cannot overflow an int.
class RowType {
 public:
  explicit RowType(std::size_t bytes) {
    MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &type_);
    MPI_Type_commit(&type_);
  }
  RowType(const RowType&) = delete;
  RowType& operator=(const RowType&) = delete;
  ~RowType() { MPI_Type_free(&type_); }
  [[nodiscard]] MPI_Datatype get() const noexcept { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

//! @brief How many rows go to each rank and where they start.
struct Counts {
  std::vector<int> count, first;
  explicit Counts(int world) : count(static_cast<std::size_t>(world)), first(count.size()) {}
  void place() { std::exclusive_scan(count.begin(), count.end(), first.begin(), 0); }
};

//! @brief One process's dispatch and combine. All memory is had and touched before anything is timed, and nothing is
//!        copied that MPI can send from, or deliver to, where it is wanted.
template <mori_ep::Element T>
class Alltoallv {
 public:
  Alltoallv(const Problem& problem, int rank)
      : problem_(problem),
        config_(problem.config()),
        rank_(rank),
        row_(config_.row_bytes()),
        meta_(kMetaWords(config_.topk) * sizeof(std::int32_t)),
        send_(config_.world),
        recv_(config_.world),
        slots_(problem.tokens() * max_copies()),
        copies_(problem.tokens()) {
    std::size_t sent = 0;
    for (int t = 0; t < config_.tokens; ++t)
      for (int d = 0; d < config_.world; ++d) sent += problem.goes_to(rank, t, d) ? 1 : 0;
    auto const k = static_cast<std::size_t>(config_.topk), received = problem.received(rank).size();
    x_ = Buffer<T>(problem.tokens() * hidden());
    y_ = Buffer<T>(x_.size());
    packed_ = Buffer<T>(sent * hidden());
    rows_ = Buffer<T>(received * hidden());
    answers_ = Buffer<T>(rows_.size());
    returned_ = Buffer<T>(packed_.size());
    packed_meta_ = Buffer<std::int32_t>(sent * kMetaWords(config_.topk));
    rows_meta_ = Buffer<std::int32_t>(received * kMetaWords(config_.topk));
    ids_ = Buffer<std::int32_t>(received * k);
    weights_ = Buffer<float>(received * k);
    sources_ = Buffer<std::int32_t>(received);
    for (auto* buffer : {&x_, &y_, &packed_, &rows_, &answers_, &returned_}) buffer->poison();
    for (auto* buffer : {&packed_meta_, &rows_meta_, &ids_, &sources_}) buffer->poison();
    weights_.poison();
  }

  [[nodiscard]] T* input() const noexcept { return x_.data(); }
  [[nodiscard]] const T* output() const noexcept { return y_.data(); }
  //! @brief Where the experts of this rank answer: combine sends from there.
  [[nodiscard]] T* answers() const noexcept { return answers_.data(); }
  void poison_output() noexcept {
    y_.poison();
    rows_.poison();
  }
  [[nodiscard]] Received<T> received() const noexcept {
    return {.count = total_received_,
            .rows = rows_.data(),
            .ids = ids_.data(),
            .weights = weights_.data(),
            .sources = sources_.data()};
  }

  void dispatch() {
    count_and_route();
    MPI_Alltoall(send_.count.data(), 1, MPI_INT, recv_.count.data(), 1, MPI_INT, MPI_COMM_WORLD);
    recv_.place();
    total_received_ = recv_.first.back() + recv_.count.back();
    pack();
    exchange(packed_.data(), send_, rows_.data(), recv_, row_);
    exchange(packed_meta_.data(), send_, rows_meta_.data(), recv_, meta_);
    unpack();
  }

  void combine() {
    exchange(answers_.data(), recv_, returned_.data(), send_, row_);
    // Streaming stores where the library would use them too.
    bool const streaming = slots_.size() * config_.row_bytes() >= mori_ep::exec::host::Stream::kStreamingBytes;
    for (std::size_t t = 0; t < problem_.tokens(); ++t) streaming ? sum_token<true>(t) : sum_token<false>(t);
    if (streaming) mori_ep::exec::host::fence_streaming();
  }

 private:
  static constexpr std::size_t kMetaWords(int topk) { return 1 + 2 * static_cast<std::size_t>(topk); }
  [[nodiscard]] std::size_t max_copies() const {
    return static_cast<std::size_t>(std::min(config_.topk, config_.world));
  }
  [[nodiscard]] std::size_t hidden() const { return static_cast<std::size_t>(config_.hidden); }

  //! The distinct ranks of every token, and how many rows go to each rank.
  void count_and_route() {
    std::fill(send_.count.begin(), send_.count.end(), 0);
    for (std::size_t t = 0; t < problem_.tokens(); ++t) {
      const std::int32_t* ids = problem_.ids(rank_, static_cast<int>(t));
      int* to = slots_.data() + t * max_copies();
      int n = 0;
      for (int k = 0; k < config_.topk; ++k) {
        int const owner = problem_.owner(ids[k]);
        if (owner < 0 || std::find(to, to + n, owner) != to + n) continue;
        to[n++] = owner;
        ++send_.count[static_cast<std::size_t>(owner)];
      }
      std::sort(to, to + n);  // rows are summed in ascending rank order
      copies_[t] = n;
    }
    send_.place();
  }

  //! Copies each token behind the others for its ranks; `slots_` then says where, for the way back.
  void pack() {
    auto next = send_.first;
    auto const k = static_cast<std::size_t>(config_.topk);
    for (std::size_t t = 0; t < problem_.tokens(); ++t)
      for (std::size_t i = 0; i < static_cast<std::size_t>(copies_[t]); ++i) {
        int& slot = slots_[t * max_copies() + i];
        slot = next[static_cast<std::size_t>(slot)]++;
        auto const at = static_cast<std::size_t>(slot);
        std::memcpy(packed_.data() + at * hidden(), x_.data() + t * hidden(), config_.row_bytes());
        std::int32_t* meta = packed_meta_.data() + at * kMetaWords(config_.topk);
        meta[0] = rank_ * config_.tokens + static_cast<std::int32_t>(t);
        std::memcpy(meta + 1, problem_.ids(rank_, static_cast<int>(t)), k * sizeof(std::int32_t));
        std::memcpy(meta + 1 + k, problem_.weights(rank_, static_cast<int>(t)), k * sizeof(float));
      }
  }

  static void exchange(const void* from, const Counts& out, void* to, const Counts& in, const RowType& type) {
    MPI_Alltoallv(from, out.count.data(), out.first.data(), type.get(), to, in.count.data(), in.first.data(),
                  type.get(), MPI_COMM_WORLD);
  }

  void unpack() {
    auto const k = static_cast<std::size_t>(config_.topk);
    for (std::size_t i = 0; i < static_cast<std::size_t>(total_received_); ++i) {
      const std::int32_t* meta = rows_meta_.data() + i * kMetaWords(config_.topk);
      sources_.data()[i] = meta[0];
      std::memcpy(ids_.data() + i * k, meta + 1, k * sizeof(std::int32_t));
      std::memcpy(weights_.data() + i * k, meta + 1 + k, k * sizeof(float));
    }
  }

  template <bool Streaming>
  void sum_token(std::size_t t) {
    std::array<const std::byte*, mori_ep::routing::kMaxTopk> from{};
    auto const n = static_cast<std::size_t>(copies_[t]);
    for (std::size_t i = 0; i < n; ++i)
      from[i] = reinterpret_cast<const std::byte*>(returned_.data()) +
                static_cast<std::size_t>(slots_[t * max_copies() + i]) * config_.row_bytes();
    auto* to = reinterpret_cast<std::byte*>(y_.data() + t * hidden());
    mori_ep::exec::host::Span const whole{0, config_.row_bytes()};
    if (n == 0)
      mori_ep::exec::host::zero_row<Streaming>(to, whole);
    else
      mori_ep::exec::host::reduce_rows<T, false, Streaming>(from.data(), nullptr, copies_[t], 0, to, whole);
  }

  const Problem& problem_;
  const Config& config_;
  int rank_;
  RowType row_, meta_;
  Counts send_, recv_;
  std::vector<int> slots_;   // [tokens, max_copies] first the destination rank, then the row in packed_
  std::vector<int> copies_;  // [tokens]
  std::int64_t total_received_ = 0;
  Buffer<T> x_, y_, packed_, rows_, answers_, returned_;
  Buffer<std::int32_t> packed_meta_, rows_meta_, ids_, sources_;
  Buffer<float> weights_;
};

//! @brief Bytes that all processes' buffers take, and what MPI itself copies through.
[[nodiscard]] inline std::int64_t alltoallv_bytes(const Problem& problem) {
  const Config& c = problem.config();
  auto const rows = static_cast<std::int64_t>(problem.rows()), tokens = std::int64_t{c.world} * c.tokens;
  return (4 * rows + 2 * tokens) * static_cast<std::int64_t>(c.row_bytes()) + (std::int64_t{64} << 20) * c.world;
}

}  // namespace ep_bench
