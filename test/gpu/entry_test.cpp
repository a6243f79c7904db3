// SPDX-License-Identifier: MIT
// A kernel has one address in a program, whichever translation unit asks: its attributes belong to that address.
#include "support/catch.hpp"
#include "support/machine_gpu.hpp"

namespace mori_ep::test {

TEST_CASE("two translation units mean one kernel") {
  REQUIRE(exec::gpu::entry_of<MarkKernel>() == mark_kernel_elsewhere());
  // More scratch than a kernel has unasked: who asks here and who launches there must mean the same.
  std::uint32_t* word = reinterpret_cast<std::uint32_t*>(Machine::allocate_board(sizeof(std::uint32_t)));
  Stream stream;
  exec::LaunchGeometry const geometry{.blocks = 1, .warps = 1, .shared_bytes = 64 * 1024};
  launch_mark_elsewhere(geometry, {word, 5}, stream).or_throw();
  stream.synchronize();
  REQUIRE(*word == 5);
  Machine::launch(geometry, MarkKernel{word, 6}, stream).or_throw();
  stream.synchronize();
  REQUIRE(*word == 6);
  Machine::release_board(reinterpret_cast<std::byte*>(word), sizeof(std::uint32_t));
}

}  // namespace mori_ep::test
