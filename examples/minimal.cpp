// SPDX-License-Identifier: MIT
// Eight ranks, here threads: dispatch, an expert that doubles its rows, combine, and a check of every element.
#include <atomic>
#include <cstdio>
#include <numeric>
#include <vector>
#include "mori_ep/mori_ep.hpp"

using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>;

int main() {
  constexpr int kTokens = 64, kHidden = 1024, kTopk = 4, kExpertsPerRank = 4;
  std::atomic<int> wrong = 0;
  Status status = LocalWorld(8).run([&](Communicator& comm) -> Status {
    Result<Ep> ep = Ep::create(comm, {.hidden_dim = kHidden,
                                      .max_num_inp_token_per_rank = kTokens,
                                      .num_experts_per_rank = kExpertsPerRank,
                                      .num_experts_per_token = kTopk});
    if (!ep.ok()) return ep.status();
    std::vector<float> x(kTokens * kHidden), y(x.size());
    std::iota(x.begin(), x.end(), static_cast<float>(comm.rank()));
    std::vector<int> ids(kTokens * kTopk);  // the four experts of a token, here always on four different ranks
    for (int i = 0; i < kTokens * kTopk; ++i) ids[i] = (9 * i + i / 4) % (8 * kExpertsPerRank);
    exec::Host::Stream stream;
    auto got = ep->dispatch({.input = {x.data(), kTokens, kHidden}, .indices = {ids.data(), kTokens, kTopk}}, stream);
    if (!got.ok()) return got.status();
    auto out = ep->get_registered_combine_input_buffer(got->ticket);  // experts write straight into it
    stream.submit([rows = got->rows, count = got->recv_count, out] {
      for (std::int64_t i = 0; i < *count * out.cols; ++i) out.data[i] = 2 * rows.data[i];
    });
    Status sent_back = ep->combine(std::move(got->ticket), {.output = {y.data(), kTokens, kHidden}}, stream);
    stream.synchronize();                                                      // all of the above only enqueues
    for (std::size_t i = 0; i < y.size(); ++i) wrong += y[i] != 4 * 2 * x[i];  // four ranks returned 2 * x each
    return sent_back.ok() ? ep->status() : sent_back;
  });
  std::printf("minimal: %s, %d wrong elements\n", status.message().c_str(), wrong.load());
  return status.ok() && wrong == 0 ? 0 : 1;
}
