// SPDX-License-Identifier: MIT
// What a consumer's translation unit costs: one operator, its whole round trip. Timed, never run.
#include <utility>

#include "mori_ep/mori_ep.hpp"

using Ep = mori_ep::EpDispatchCombine<mori_ep::transport::Xgmi, mori_ep::schedule::IntraNode,
                                      mori_ep::quant::None<mori_ep::bf16>, mori_ep::exec::Host>;

mori_ep::Status round_trip(const mori_ep::Communicator& comm, const mori_ep::EpDispatchCombineConfig& config,
                           const Ep::DispatchInputs& tokens, const Ep::CombineInputs& rows, Ep::StreamRef stream) {
  auto ep = Ep::create(comm, config);
  if (!ep.ok()) return ep.status();
  auto got = ep->dispatch(tokens, stream);
  if (!got.ok()) return got.status();
  return ep->combine(std::move(got->ticket), rows, stream);
}
