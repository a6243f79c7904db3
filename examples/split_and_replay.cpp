// SPDX-License-Identifier: MIT
// Two micro-batches in flight at once through the split calls, then a replay of the first one's routing with another
// payload, as a backward pass does it.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "mori_ep/mori_ep.hpp"

using namespace mori_ep;
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>;

namespace {

constexpr int kRanks = 8, kTokens = 96, kHidden = 512, kTopk = 4, kExpertsPerRank = 2;

//! One rank's micro-batch. Weights are powers of two and elements small integers, so every sum is exact.
struct Batch {
  std::vector<float> x, y, weights;
  std::vector<std::int32_t> ids;

  Batch(int rank, int number) : x(kTokens * kHidden), y(x.size()), weights(kTokens * kTopk), ids(weights.size()) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>((i * 13 + i / kHidden + rank + number) % 251);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>((i * 5 + i / kTopk * (3 + number) + rank) % (kRanks * kExpertsPerRank));
      weights[i] = 1.0f / static_cast<float>(2 << i % kTopk);
    }
  }
  [[nodiscard]] Ep::DispatchInputs inputs() const {
    return {.input = {x.data(), kTokens, kHidden},
            .indices = {ids.data(), kTokens, kTopk},
            .weights = {weights.data(), kTokens, kTopk}};
  }
  [[nodiscard]] Ep::CombineInputs outputs() { return {.output = {y.data(), kTokens, kHidden}}; }

  //! Elements of y that are not sum over k of weight * (1 + expert) * payload.
  [[nodiscard]] int count_wrong(const std::vector<float>& payload) const {
    int wrong = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      float factor = 0;
      for (std::size_t k = i / kHidden * kTopk; k < (i / kHidden + 1) * kTopk; ++k)
        factor += weights[k] * static_cast<float>(1 + ids[k]);
      wrong += y[i] != factor * payload[i];
    }
    return wrong;
  }
};

//! Expert e multiplies by 1 + e; a rank weights and sums its own experts into the registered buffer.
void enqueue_experts(const Ep& ep, const Ep::Dispatched& got, int rank, exec::Host::Stream& stream) {
  auto const out = ep.get_registered_combine_input_buffer(got.ticket);
  stream.submit([rows = got.rows, ids = got.indices, weights = got.weights, count = got.recv_count, out, rank] {
    for (std::int32_t r = 0; r < *count; ++r) {
      float factor = 0;
      for (int k = 0; k < kTopk; ++k)
        if (std::int32_t const e = ids.row(r)[k]; e / kExpertsPerRank == rank)
          factor += weights.row(r)[k] * static_cast<float>(1 + e);
      for (int h = 0; h < kHidden; ++h) out.row(r)[h] = factor * rows.row(r)[h];
    }
  });
}

//! Throws where an operator's call fails: main prints the message.
void run_rank(Communicator& comm, std::atomic<int>& wrong) {
  int const rank = comm.rank();
  Result<Ep> created = Ep::create(comm, {.hidden_dim = kHidden,
                                         .max_num_inp_token_per_rank = kTokens,
                                         .num_experts_per_rank = kExpertsPerRank,
                                         .num_experts_per_token = kTopk,
                                         .num_buffer_sets = 2});  // two tickets may be in flight
  Ep& ep = created.value();
  Batch a(rank, 0), b(rank, 1);
  std::vector<float> gradient(a.x.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 127);
  Ep::KeptRouting kept;
  exec::Host::Stream stream;

  // Rows of b travel while the experts compute a; a's results travel while they compute b.
  Ep::Dispatched got_a = ep.dispatch_send(a.inputs(), stream).value();
  Ep::Dispatched got_b = ep.dispatch_send(b.inputs(), stream).value();
  ep.dispatch_recv(got_a.ticket, stream).or_throw();
  kept = ep.keep(got_a.ticket, stream).value();  // its own copy: the ticket is about to be consumed
  enqueue_experts(ep, got_a, rank, stream);
  ep.combine_send(got_a.ticket, a.outputs(), stream).or_throw();
  ep.dispatch_recv(got_b.ticket, stream).or_throw();
  enqueue_experts(ep, got_b, rank, stream);
  ep.combine_send(got_b.ticket, b.outputs(), stream).or_throw();
  ep.combine_recv(std::move(got_a.ticket), a.outputs(), stream).or_throw();
  ep.combine_recv(std::move(got_b.ticket), b.outputs(), stream).or_throw();
  stream.synchronize();
  wrong += a.count_wrong(a.x) + b.count_wrong(b.x);

  // The kept routing sends another payload the same way; ids and weights need not be at hand any more.
  Ep::Dispatched again = ep.dispatch({.input = {gradient.data(), kTokens, kHidden}, .routing = &kept}, stream).value();
  enqueue_experts(ep, again, rank, stream);
  ep.combine(std::move(again.ticket), a.outputs(), stream).or_throw();
  stream.synchronize();
  wrong += a.count_wrong(gradient);
  ep.status().or_throw();
}

}  // namespace

int main() {
  std::atomic<int> wrong = 0;
  Status const status = LocalWorld(kRanks).run([&](Communicator& comm) -> Status {
    try {
      run_rank(comm, wrong);
      return {};
    } catch (const Exception& error) {
      return error.error();
    }
  });
  std::printf("split_and_replay: %s, %d wrong elements\n", status.message().c_str(), wrong.load());
  return status.ok() && wrong == 0 ? 0 : 1;
}
