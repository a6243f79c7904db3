// SPDX-License-Identifier: MIT
//! @file How large rows are, in the forms that an operator moves.
#pragma once

#include <cstddef>

namespace mori_ep::schedule::intra_node {

//! @brief Bytes of the rows of H elements that an operator moves.
struct RowSizes {
  std::size_t received = 0;  //!< by a dispatch, without the scales
  std::size_t combined = 0;  //!< as combine sums them
  std::size_t sum = 0;       //!< as combine gives them
};

}  // namespace mori_ep::schedule::intra_node
