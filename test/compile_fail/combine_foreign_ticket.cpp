// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine::combine takes the ticket that dispatch returned (it owns the routing), not indices and not another operator's ticket.
#include <utility>

#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Host>;
using Other = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>;

Status foreign(Ep& ep, [[maybe_unused]] Ep::Ticket ticket, [[maybe_unused]] Other::Ticket other,
               const Ep::CombineInputs& rows, Ep::StreamRef stream) {
#ifdef GOOD
  return ep.combine(std::move(ticket), rows, stream);
#else
  return ep.combine(std::move(other), rows, stream);
#endif
}
