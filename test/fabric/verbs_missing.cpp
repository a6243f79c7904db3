// SPDX-License-Identifier: MIT
// fabric::Verbs as it is compiled where libibverbs has no header.
#define MORI_EP_WITHOUT_VERBS
#include <cstdio>
#include <string>

#include "mori_ep/comm/local_world.hpp"
#include "mori_ep/fabric/verbs.hpp"

using namespace mori_ep;

int main() {
  Status const status = comm::LocalWorld(2).run([](comm::Communicator& comm) -> Status {
    std::byte arena[64];
    auto const fabric = fabric::Verbs::connect(comm, {arena, sizeof(arena)});
    return fabric.status();
  });
  std::string const said = status.message();
  std::printf("%s\n", said.c_str());
  bool const good = said.find("<infiniband/verbs.h> is \"missing\"") != std::string::npos &&
                    said.find("apt-get install libibverbs-dev") != std::string::npos;
  return good ? 0 : 1;
}
