// SPDX-License-Identifier: MIT
#include "support/operators.hpp"

namespace mori_ep::test {

#if defined(MORI_EP_GPU)

std::string play(const Plan& plan, std::vector<std::uint64_t>* hashes) { return play_on<Machine>(plan, hashes); }

#else

std::string play(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  static bool const between_nodes = env_number("MORI_EP_TEST_NETWORK", 0) != 0;
  return between_nodes ? play_between_nodes(plan, hashes) : play_on<Machine>(plan, hashes);
}

std::string play_between_nodes(const Plan& plan, std::vector<std::uint64_t>* hashes) {
  Plan networked = plan;
  Setup& s = networked.setup;
  auto const world = static_cast<std::uint64_t>(s.world);
  Rng rng(mix(plan.calls.size(), world, static_cast<std::uint64_t>(s.config.hidden_dim)));
  if (s.gpu_per_node == 0) s.gpu_per_node = rng.in(1, s.world);
  if (s.loopback == fabric::LoopbackOptions{} && !rng.one_in(3))
    s.loopback = {.queue_pairs = rng.in(1, 3),
                  .depth = rng.in(1, 40),
                  .seed = rng.next(),
                  .reorder = rng.one_in(2),
                  .most_delay = std::chrono::microseconds(rng.one_in(2) ? rng.in(0, 200) : 0),
                  .most_late = std::chrono::microseconds(rng.one_in(2) ? rng.in(0, 100) : 0),
                  .early_one_in = rng.one_in(2) ? 3 : 0,
                  .duplicate_one_in = rng.one_in(2) ? 2 : 0,
                  .full_one_in = rng.one_in(2) ? 3 : 0};
  return play_with<NetworkOp>(networked, hashes);
}

#endif

}  // namespace mori_ep::test
