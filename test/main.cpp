// SPDX-License-Identifier: MIT
// Catch2's runner, in an object of its own: with v2 it takes longer to compile than all the tests of a header.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif

namespace mori_ep::test {
int prepare_machine();  // support/machine.hpp
}

int main(int argc, char** argv) {
  int const status = mori_ep::test::prepare_machine();
  return status != 0 ? status : Catch::Session().run(argc, argv);
}
