// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine::combine takes the ticket that dispatch returned (it owns the routing), not indices and not another operator's ticket.
#include <utility>

#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Host>;

Status by_ids(Ep& ep, [[maybe_unused]] Ep::Ticket ticket, [[maybe_unused]] TensorView<const std::int32_t> ids,
              const Ep::CombineInputs& rows, Ep::StreamRef stream) {
#ifdef GOOD
  return ep.combine(std::move(ticket), rows, stream);
#else
  return ep.combine(ids, rows, stream);
#endif
}
