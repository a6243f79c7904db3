// SPDX-License-Identifier: MIT
// Catch2's main, in an object of its own: with v2 it takes longer to compile than all the tests of a header.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
int main(int argc, char** argv) { return Catch::Session().run(argc, argv); }
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
