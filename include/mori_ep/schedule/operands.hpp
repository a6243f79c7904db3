// SPDX-License-Identifier: MIT
//! @file What an operator hands to a schedule: checked pointers and strides, and what a schedule hands back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "mori_ep/routing/route.hpp"

namespace mori_ep::schedule {

//! @brief One rank's tokens. Strides: x and scales in bytes, ids and weights in elements. Null: not given.
template <routing::IndexType Index>
struct DispatchOperands {
  std::int32_t tokens = 0;
  const std::int32_t* token_count = nullptr;  //!< device-side, at most `tokens`; null: `tokens`
  const std::byte* x = nullptr;
  const Index* ids = nullptr;
  const float* weights = nullptr;
  const std::byte* scales = nullptr;
  std::size_t x_stride = 0, ids_stride = 0, weights_stride = 0, scales_stride = 0;
};

//! @brief One rank's rows to give back, and where its own tokens' sums go. Strides: x and y in bytes, weights in
//! elements.
struct CombineOperands {
  std::int32_t tokens = 0;
  const std::byte* x = nullptr;  //!< null: the rows are in the registered buffer
  const float* weights = nullptr;
  std::int64_t x_rows = 0, weights_rows = 0;
  std::byte* y = nullptr;
  float* weights_out = nullptr;
  std::size_t x_stride = 0, weights_stride = 0, y_stride = 0, weights_out_stride = 0;
};

//! @brief The buffers of one set, on the machine where kernels run.
template <class Received, class Out, routing::IndexType Index>
struct RecvBuffers {
  Received* x;
  float* weights;
  Index* ids;
  std::byte* scales;
  std::int32_t* src_pos;
  Out* combine_x;  // where rows are not coded
  const routing::RecvTotals* totals;
  const std::int32_t* expert_count;
};

}  // namespace mori_ep::schedule
