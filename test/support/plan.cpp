// SPDX-License-Identifier: MIT
#include "support/plan.hpp"

#include <algorithm>
#include <cstring>

namespace mori_ep::test {

const char* name(Routing routing) noexcept {
  static const char* const names[] = {"uniform",     "any",          "one_expert", "one_rank",    "own_rank",
                                      "never_own",   "two_per_rank", "all_masked", "some_masked", "first_masked",
                                      "last_masked", "invalid",      "skewed"};
  return names[static_cast<int>(routing)];
}

void append_ids(const Setup& setup, Routing routing, int rank, Rng& rng, std::vector<std::int64_t>& ids) {
  int const k = setup.config.num_experts_per_token, per_rank = setup.config.num_experts_per_rank,
            experts = setup.experts();
  auto const first = ids.size();
  auto const random_of = [&](int owner) { return std::int64_t{owner} * per_rank + rng.in(0, per_rank - 1); };
  for (int j = 0; j < k; ++j) {
    std::int64_t id = rng.in(0, experts - 1);
    switch (routing) {
      case Routing::uniform:
        for (int tries = 0; tries < 8 * experts &&
                            std::find(ids.begin() + static_cast<std::ptrdiff_t>(first), ids.end(), id) != ids.end();
             ++tries)
          id = (id + 1) % experts;
        break;
      case Routing::one_expert:
        id = 0;
        break;
      case Routing::one_rank:
        id = random_of(setup.world - 1);
        break;
      case Routing::own_rank:
        id = random_of(rank);
        break;
      case Routing::never_own:
        id = setup.world == 1 ? -1 : random_of((rank + rng.in(1, setup.world - 1)) % setup.world);
        break;
      case Routing::two_per_rank:
        id = j % 2 == 0 ? id : ids.back() / per_rank * per_rank + (ids.back() + 1) % per_rank;
        break;
      case Routing::all_masked:
        id = -1;
        break;
      case Routing::some_masked:
        if (rng.one_in(3)) id = -1;
        break;
      case Routing::first_masked:
        if (j == 0) id = -1;
        break;
      case Routing::last_masked:
        if (j == k - 1) id = -1;
        break;
      case Routing::invalid: {
        std::int64_t const bad[] = {-1,        experts,  experts + rng.in(0, 1000), -2, -rng.in(2, 100000),
                                    INT32_MAX, INT32_MIN};
        std::int64_t const huge[] = {INT64_MAX, INT64_MIN, std::int64_t{1} << 32, (std::int64_t{1} << 32) + id,
                                     -(std::int64_t{1} << 32) + id};
        if (rng.one_in(2)) id = setup.ids == Ids::int64 && rng.one_in(2) ? rng.of(huge) : rng.of(bad);
        break;
      }
      case Routing::skewed:
        id = std::min({id, std::int64_t{rng.in(0, experts - 1)}, std::int64_t{rng.in(0, experts - 1)}});
        break;
      case Routing::any:
        break;
    }
    ids.push_back(id);
  }
}

oracle::Tokens make_tokens(const Setup& setup, Routing routing, int rank, int count, Rng& rng) {
  auto const n = static_cast<std::size_t>(count);
  oracle::Tokens out;
  out.count = count;
  std::size_t const elements = n * static_cast<std::size_t>(setup.config.hidden_dim);
  out.x.resize(elements * oracle::bytes_of(setup.format));
  for (std::size_t i = 0; i < elements; ++i) {
    std::uint64_t const r = rng.next();
    // 24 random bits of mantissa round to whatever the format has; magnitudes 2^-3 to 2^4, so that no sum overflows.
    double value = std::ldexp(1.0 + static_cast<double>(r & 0xffffffu) * 0x1p-24, static_cast<int>((r >> 24) % 7) - 3);
    if ((r >> 40) % 64 == 0) value = 0;
    if ((r >> 40) % 64 == 1) value = std::ldexp(value, oracle::info(setup.format).emin - 4);
    oracle::store(setup.format, out.x.data(), i, oracle::encode(setup.format, (r >> 63) != 0 ? -value : value));
  }
  for (int t = 0; t < count; ++t) append_ids(setup, routing, rank, rng, out.ids);
  out.weights.resize(out.ids.size());
  for (float& w : out.weights) {
    std::uint64_t const r = rng.next();
    w = static_cast<float>(static_cast<double>(r % 16777216) * 0x1p-22 - 1.0);
    // Carried weights are bytes to dispatch: any bits must survive. Where combine multiplies by them they stay sane.
    if (setup.reduction == Reduction::sum && (r >> 32) % 8 == 0) {
      auto const bits = static_cast<std::uint32_t>(r >> 20);
      std::memcpy(&w, &bits, sizeof(w));
    }
    if ((r >> 32) % 16 == 1) w = 0;
  }
  out.scales.resize(n * setup.config.scale_bytes());
  for (std::byte& b : out.scales) b = static_cast<std::byte>(rng.next());
  return out;
}

Call make_call(const Setup& setup, Routing routing, const std::vector<int>& counts, Rng& rng) {
  Call call;
  for (int rank = 0; rank < setup.world; ++rank)
    call.tokens.push_back(
        make_tokens(setup, routing, rank, counts[static_cast<std::size_t>(rank) % counts.size()], rng));
  return call;
}

Plan make_plan(const Setup& setup, Routing routing, int calls, std::uint64_t seed) {
  Rng rng(seed);
  Plan plan{.setup = setup, .calls = {}, .steps = {}};
  for (int i = 0; i < calls; ++i)
    plan.calls.push_back(make_call(setup, routing, {setup.config.max_num_inp_token_per_rank}, rng));
  return plan;
}

std::string describe(const Plan& plan) {
  const Setup& s = plan.setup;
  const EpDispatchCombineConfig& c = s.config;
  static const char* const formats[] = {"bf16", "fp16", "fp32"};
  std::string text = std::string(formats[static_cast<int>(s.format)]) + (s.ids == Ids::int64 ? " int64" : " int32") +
                     (s.reduction == Reduction::weighted ? " weighted" : " sum");
  auto const add = [&text](const char* field, std::int64_t value) {
    text += std::string(" ") + field + "=" + std::to_string(value);
  };
  add("world", s.world), add("gpu_per_node", s.gpu_per_node), add("streams", s.streams);
  add("own_memory", s.own_memory ? 1 : 0), add("jitter_us", s.jitter_us);
  add("hidden", c.hidden_dim), add("max_tokens", c.max_num_inp_token_per_rank);
  add("experts_per_rank", c.num_experts_per_rank), add("topk", c.num_experts_per_token);
  add("scale_dim", c.scale_dim), add("scale_type_size", c.scale_type_size);
  add("max_recv", c.max_total_recv_tokens), add("buffer_sets", c.num_buffer_sets);
  add("reduce_gpu_per_node", c.reduce_gpu_per_node), add("rows_per_put", c.rows_per_put);
  add("block_num", c.block_num), add("rdma_block_num", c.rdma_block_num);
  add("warps", c.warp_num_per_block), add("first_epoch", c.first_epoch);
  if (s.loopback != fabric::LoopbackOptions{}) {
    add("queue_pairs", s.loopback.queue_pairs), add("depth", s.loopback.depth);
    add("network_seed", static_cast<std::int64_t>(s.loopback.seed)), add("reorder", s.loopback.reorder ? 1 : 0);
    add("most_delay_ns", s.loopback.most_delay.count()), add("most_late_ns", s.loopback.most_late.count());
    add("early_one_in", s.loopback.early_one_in), add("duplicate_one_in", s.loopback.duplicate_one_in);
    add("full_one_in", s.loopback.full_one_in);
  }
  for (std::size_t i = 0; i < plan.calls.size() && i < 12; ++i) {
    const Call& call = plan.calls[i];
    text += "\n  call " + std::to_string(i) + ": tokens";
    for (const auto& t : call.tokens) text += " " + std::to_string(t.count);
    add("weights", call.weights), add("zero_copy", call.zero_copy), add("return_weights", call.return_weights);
    add("pad", call.pad), add("extra_rows", call.extra_rows), add("blocks", call.blocks), add("warps", call.warps);
    add("replay_of", call.replay_of);
  }
  static const char* const kinds[] = {"D", "S", "R", "C", "CS", "CR", "drop", "keep", "scribble"};
  text += "\n  steps:";
  for (std::size_t i = 0; i < plan.steps.size() && i < 64; ++i)
    text += std::string(" ") + kinds[plan.steps[i].kind] + std::to_string(plan.steps[i].call);
  return text;
}

}  // namespace mori_ep::test
