// SPDX-License-Identifier: MIT
// expect-error: EpDispatchCombine::combine consumes the ticket: write combine(std::move(ticket), ...).
#include <utility>

#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<bf16>, exec::Host>;

Status second_combine(Ep& ep, Ep::Ticket& ticket, const Ep::CombineInputs& rows, Ep::StreamRef stream) {
#ifdef GOOD
  return ep.combine(std::move(ticket), rows, stream);
#else
  return ep.combine(ticket, rows, stream);
#endif
}
