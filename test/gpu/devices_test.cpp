// SPDX-License-Identifier: MIT
// Ranks of one process on several devices: each rank's memory is on its own, and all plays give what the oracle says.
// With one device the same plays run on it, and the test says that it saw no other.
#include <cstdio>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/machine.hpp"
#include "support/plan.hpp"

namespace mori_ep::test {

TEST_CASE("ranks spread over all visible devices, some of them on one, some of them on two streams") {
  int const devices = Machine::device_count();
  if (devices == 1) {
    std::printf("SKIPPED: several devices; this machine has one\n");
    std::fflush(stdout);
  }
  for (int per_device : {1, 2, 3})
    for (bool const own_memory : {false, true}) {
      Setup setup{.format = Format::bf16,
                  .world = devices * per_device,
                  .streams = per_device == 3 ? 2 : 1,
                  .own_memory = own_memory,
                  .jitter_us = 50};
      setup.config.hidden_dim = 7168;
      setup.config.max_num_inp_token_per_rank = 40;
      setup.config.num_experts_per_rank = 4;
      setup.config.num_experts_per_token = per_device * devices < 2 ? 2 : 6;
      setup.config.num_buffer_sets = setup.streams;
      Plan plan = make_plan(setup, Routing::any, 6, mix(98, static_cast<std::uint64_t>(per_device)));
      for (std::size_t i = 0; i < plan.calls.size(); ++i)
        plan.calls[i].zero_copy = i % 2 == 0, plan.calls[i].return_weights = i % 3 == 0;
      REQUIRE(play(plan) == "");
    }
}

TEST_CASE("a rank's rows are on the device that it chose") {
  using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, Machine>;
  int const devices = Machine::device_count(), world = 2 * devices;
  std::vector<int> on(static_cast<std::size_t>(world), -1);
  Status const s = LocalWorld(world).run([&](Communicator& comm) -> Status {
    if (Status d = Machine::use_device(comm.rank() * devices / world); !d.ok()) return d;
    auto ep = Ep::create(
        comm,
        {.hidden_dim = 4, .max_num_inp_token_per_rank = 1, .num_experts_per_rank = 1, .num_experts_per_token = 1});
    if (!ep.ok()) return ep.status();
    Stream stream;
    auto got = ep->dispatch({.input = {nullptr, 0, 4}, .indices = {nullptr, 0, 1}}, stream);
    if (!got.ok()) return got.status();
    stream.synchronize();
    exec::gpu::RtPointerAttributes of{};
    expect_success(MORI_EP_RT(PointerGetAttributes)(&of, got->rows.data), "pointer");
    on[static_cast<std::size_t>(comm.rank())] = of.device;
    return ep->status();
  });
  REQUIRE(s.message() == "ok");
  for (int rank = 0; rank < world; ++rank) CHECK(on[static_cast<std::size_t>(rank)] == rank / 2);
  CHECK(!Machine::use_device(devices).ok());
}

}  // namespace mori_ep::test
