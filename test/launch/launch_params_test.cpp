// SPDX-License-Identifier: MIT
#include <string>

#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/launch/launch_params.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {

using launch::LaunchParams;
using launch::resolve;

launch::LaunchLimits host_limits() {
  return {.residency = exec::Host::residency<int>([](int) { return std::size_t{0}; }),
          .default_blocks = exec::Host::default_blocks(1024, 2),
          .default_warps = exec::Host::default_warps()};
}

TEST_CASE("the call comes before the config, the config before the machine") {
  struct Case {
    LaunchParams call, config;
    int blocks, warps;
  };
  int const machine = exec::Host::default_blocks(1024, 2);
  for (Case const c : {Case{{}, {}, machine, 1},
                       {{}, {5, 2}, 5, 2},
                       {{3, 0}, {5, 2}, 3, 2},
                       {{0, 4}, {5, 2}, 5, 4},
                       {{7, 3}, {5, 2}, 7, 3},
                       {{0, 1024}, {}, 1, 1024}}) {
    auto const p = resolve(c.call, c.config, host_limits());
    REQUIRE(p.ok());
    REQUIRE(p->block_num == c.blocks);
    REQUIRE(p->warp_per_block == c.warps);
  }
}

TEST_CASE("what cannot be resident together is refused") {
  struct Case {
    LaunchParams call;
    const char* field;
    int value, limit;
  };
  for (Case const c : {Case{{1025, 1}, "block_num", 1025, 1024},
                       {{-1, 1}, "block_num", -1, 1024},
                       {{513, 2}, "block_num", 513, 512},
                       {{1, 1025}, "warp_per_block", 1025, 1024},
                       {{1, -1}, "warp_per_block", -1, 1024}}) {
    auto const p = resolve(c.call, {}, host_limits());
    INFO(p.message());
    REQUIRE(p.error().code == Errc::invalid_argument);
    REQUIRE(std::string(p.error().field) == c.field);
    REQUIRE(p.error().value == c.value);
    REQUIRE(p.error().limit == c.limit);
  }
}

TEST_CASE("ranks that share a device share its blocks") {
  launch::LaunchLimits limits = host_limits();
  limits.sharers = 8;
  REQUIRE(resolve({128, 1}, {}, limits).ok());
  auto const p = resolve({129, 1}, {}, limits);
  REQUIRE(p.error().code == Errc::invalid_argument);
  REQUIRE(p.error().limit == 128);
}

TEST_CASE("narrow blocks take the room of usual ones, since others may stand beside them") {
  launch::LaunchLimits limits = host_limits();
  limits.sharers = 2;
  limits.usual_warps = 16;  // 64 such blocks fit, 32 for each sharer
  for (int warps : {1, 4, 16}) {
    REQUIRE(resolve({32, warps}, {}, limits).ok());
    REQUIRE(resolve({33, warps}, {}, limits).error().limit == 32);
  }
  REQUIRE(resolve({17, 32}, {}, limits).error().limit == 16);
}

}  // namespace mori_ep::test
