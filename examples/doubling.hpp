// SPDX-License-Identifier: MIT
//! @file What the ranks of an example do once they have met, whatever brought them together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "mori_ep/mori_ep.hpp"

//! @brief One rank: dispatch, experts that double their rows, combine.
//! @return how many elements came back wrong
inline mori_ep::Result<int> double_tokens(const mori_ep::Communicator& comm) {
  using namespace mori_ep;
  using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>;
  constexpr int kTokens = 64, kHidden = 1024, kTopk = 2, kExpertsPerRank = 2;
  Result<Ep> ep = Ep::create(comm, {.hidden_dim = kHidden,
                                    .max_num_inp_token_per_rank = kTokens,
                                    .num_experts_per_rank = kExpertsPerRank,
                                    .num_experts_per_token = kTopk});
  if (!ep.ok()) return ep.status();
  std::vector<float> x(kTokens * kHidden), y(x.size());
  std::iota(x.begin(), x.end(), static_cast<float>(comm.rank()));
  std::vector<int> ids(kTokens * kTopk);  // a token's experts are the first of one rank and the second of the next
  for (int i = 0; i < kTokens * kTopk; ++i) ids[i] = (i / 2 + i % 2) % comm.world() * kExpertsPerRank + i % 2;
  exec::Host::Stream stream;
  auto got = ep->dispatch({.input = {x.data(), kTokens, kHidden}, .indices = {ids.data(), kTokens, kTopk}}, stream);
  if (!got.ok()) return got.status();
  auto const out = ep->get_registered_combine_input_buffer(got->ticket);
  stream.submit([rows = got->rows, count = got->recv_count, out] {
    for (std::int64_t i = 0; i < *count * out.cols; ++i) out.data[i] = 2 * rows.data[i];
  });
  if (Status s = ep->combine(std::move(got->ticket), {.output = {y.data(), kTokens, kHidden}}, stream); !s.ok())
    return s;
  stream.synchronize();
  if (Status s = ep->status(); !s.ok()) return s;
  int const ranks = comm.world() > 1 ? 2 : 1;  // each returned 2 * x
  int wrong = 0;
  for (std::size_t i = 0; i < y.size(); ++i) wrong += y[i] != static_cast<float>(ranks) * 2 * x[i];
  return wrong;
}
