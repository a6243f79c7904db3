// SPDX-License-Identifier: MIT
//! @file How much memory the symmetric heaps of a communicator may take: MORI_SHMEM_HEAP_SIZE.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>

#include "mori_ep/env.hpp"

namespace mori_ep::comm {

class HeapBudget {
 public:
  static constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

  explicit HeapBudget(const Environment& environment) noexcept : limit_(environment.heap_bytes.value_or(kNoLimit)) {}

  [[nodiscard]] std::int64_t limit() const noexcept { return limit_; }
  [[nodiscard]] std::int64_t used() const noexcept { return used_.load(std::memory_order_relaxed); }

  //! @brief Counts bytes as used while it lives.
  class Share {
   public:
    Share() noexcept = default;
    Share(std::shared_ptr<HeapBudget> budget, std::int64_t bytes) noexcept : budget_(std::move(budget)), bytes_(bytes) {
      budget_->used_.fetch_add(bytes_, std::memory_order_relaxed);
    }
    Share(Share&& other) noexcept : budget_(std::move(other.budget_)), bytes_(other.bytes_) {}
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(bytes_, other.bytes_);
      return *this;
    }
    ~Share() {
      if (budget_) budget_->used_.fetch_sub(bytes_, std::memory_order_relaxed);
    }

   private:
    std::shared_ptr<HeapBudget> budget_;
    std::int64_t bytes_ = 0;
  };

 private:
  std::int64_t limit_;
  std::atomic<std::int64_t> used_{0};
};

}  // namespace mori_ep::comm
