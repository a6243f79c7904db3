// SPDX-License-Identifier: MIT
#include <string>

#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/launch/launch_params.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {

using launch::LaunchParams;
using launch::resolve;

TEST_CASE("the call comes before the config, the config before the machine") {
  struct Case {
    LaunchParams call, config;
    int blocks, warps;
  };
  int const machine = exec::Host::default_blocks(2);
  for (Case const c : {Case{{}, {}, machine, 1},
                       {{}, {5, 2}, 5, 2},
                       {{3, 0}, {5, 2}, 3, 2},
                       {{0, 4}, {5, 2}, 5, 4},
                       {{7, 3}, {5, 2}, 7, 3},
                       {{0, 1024}, {}, 1, 1024}}) {
    auto const p = resolve<exec::Host>(c.call, c.config, 2, Errc::invalid_argument);
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
    auto const p = resolve<exec::Host>(c.call, {}, 2, Errc::invalid_argument);
    INFO(p.message());
    REQUIRE(p.error().code == Errc::invalid_argument);
    REQUIRE(std::string(p.error().field) == c.field);
    REQUIRE(p.error().value == c.value);
    REQUIRE(p.error().limit == c.limit);
  }
}

}  // namespace mori_ep::test
