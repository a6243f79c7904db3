// SPDX-License-Identifier: MIT
// The scratch that a launch gives a block, which no code object shows: two blocks must fit into the 64 KiB that a compute
// unit of gfx9 has, in a world of one node.
#include <cstddef>
#include <cstdio>

#include "mori_ep/mori_ep.hpp"

using namespace mori_ep;

int main() {
  using Ref = transport::Xgmi::Ref;
  constexpr int kWorld = 8, kExperts = 256, kTopk = 8, kMost = 32768;
  bool fits = true;
  for (int warps : {8, 16}) {
    std::size_t const dispatch =
        schedule::intra_node::DispatchKernel<Ref, int, false>::shared_bytes(kWorld, kWorld, kExperts, kTopk, warps);
    std::size_t const combine =
        schedule::intra_node::CombineKernel<Ref, bf16, false>::shared_bytes(kWorld, kTopk, warps);
    std::printf("LDS of a block, %d ranks, %d experts, top-%d, %d waves: dispatch %zu, combine %zu bytes\n", kWorld,
                kExperts, kTopk, warps, dispatch, combine);
    fits = fits && dispatch <= kMost && combine <= kMost;
  }
  return fits ? 0 : 1;
}
