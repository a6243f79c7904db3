// SPDX-License-Identifier: MIT
//! @file Scales that travel beside rows: the caller's, or, where dispatch codes, the operator's own.
#pragma once

#include <cstddef>

#include "mori_ep/error.hpp"
#include "mori_ep/quant/policy.hpp"
#include "mori_ep/schedule/config.hpp"

namespace mori_ep::schedule {

//! @brief Of a caller that configures scales where the operator makes them.
[[nodiscard]] inline Error scales_refused(int scale_dim) noexcept {
  return {.code = Errc::invalid_config,
          .phase = Phase::create,
          .field = "scale_dim",
          .value = scale_dim,
          .limit = 0,
          .hint = "Dispatch codes the rows and makes their scales: leave scale_dim 0."};
}

//! @brief `config` with the scales that a dispatch of this format brings. Errors: the caller's where the operator makes
//!        them.
template <quant::QuantPolicy Quant>
[[nodiscard]] Result<EpDispatchCombineConfig> with_scales(EpDispatchCombineConfig config) noexcept {
  if constexpr (quant::CodesDispatch<Quant>) {
    using Form = typename Quant::Dispatch;
    if (config.scale_dim != 0) return scales_refused(config.scale_dim);
    auto const scales = Form::scales(static_cast<std::size_t>(config.hidden_dim > 0 ? config.hidden_dim : 0));
    config.scale_dim = static_cast<int>(scales);
    config.scale_type_size = scales == 0 ? 0 : static_cast<int>(sizeof(typename Form::ScaleType));
  }
  return config;
}

}  // namespace mori_ep::schedule
