// SPDX-License-Identifier: MIT
// expect-error: LocalWorld::run: rank_main returns a Status or nothing, so that no error is lost. Return result.status() of a Result.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Returned = Status;
#else
using Returned = Result<int>;
#endif
void run() { (void)LocalWorld(1).run([](Communicator&) -> Returned { return Error{}; }); }
