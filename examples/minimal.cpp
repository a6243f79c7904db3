// SPDX-License-Identifier: MIT
// Eight ranks as threads: dispatch, an expert that doubles its rows, combine, and a check.
#include <cstdio>
#include <vector>

#include "mori_ep/mori_ep.hpp"

using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>;

int main() {
  constexpr int kTokens = 64, kHidden = 1024, kTopk = 4, kExpertsPerRank = 4;
  Status result = LocalWorld(8).run([](Communicator& comm) -> Status {
    Result<Ep> ep = Ep::create(comm, {.hidden_dim = kHidden,
                                      .max_num_inp_token_per_rank = kTokens,
                                      .num_experts_per_rank = kExpertsPerRank,
                                      .num_experts_per_token = kTopk});
    if (!ep.ok()) return ep.status();
    exec::Host::Stream stream;
    std::vector<float> x(kTokens * kHidden, 1.0f + static_cast<float>(comm.rank())), y(x.size());
    std::vector<std::int32_t> ids(kTokens * kTopk);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int>(i * 9 + i / 4) % (8 * kExpertsPerRank);

    auto got = ep->dispatch({.input = {x.data(), kTokens, kHidden}, .indices = {ids.data(), kTokens, kTopk}}, stream);
    if (!got.ok()) return got.status();
    auto rows = ep->get_registered_combine_input_buffer(got->ticket);  // experts write straight into it
    stream.submit([&] {
      for (int i = 0; i < *got->recv_count * kHidden; ++i) rows.data[i] = 2 * got->rows.data[i];
    });
    if (Status s = ep->combine(std::move(got->ticket), {.output = {y.data(), kTokens, kHidden}}, stream); !s.ok())
      return s;
    stream.synchronize();

    for (int t = 0; t < kTokens; ++t)  // the four ids of a token are 9 apart: four distinct ranks, each returned 2 * x
      if (y[t * kHidden] != 4 * 2 * x[t * kHidden])
        std::printf("rank %d token %d is wrong\n", comm.rank(), t), std::exit(1);
    return ep->status();
  });
  std::puts(result.ok() ? "minimal: 8 ranks x 64 tokens, all sums exact" : result.message().c_str());
  return result.ok() ? 0 : 1;
}
