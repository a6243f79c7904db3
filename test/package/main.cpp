// SPDX-License-Identifier: MIT
#include <atomic>
#include <cstdio>

#include "mori_ep/mori_ep.hpp"

int main() {
  std::atomic<int> ranks = 0;
  mori_ep::Status const status = mori_ep::LocalWorld(3).run([&](mori_ep::Communicator&) { ++ranks; });
  std::printf("mori_ep %d.%d.%d, %d ranks\n", MORI_EP_VERSION_MAJOR, MORI_EP_VERSION_MINOR, MORI_EP_VERSION_PATCH,
              ranks.load());
  return status.ok() && ranks == 3 ? 0 : 1;
}
