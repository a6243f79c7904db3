// SPDX-License-Identifier: MIT
// expect-error: This fabric does not reach the machine's memory: fabric::Loopback copies by threads of the host. Use exec::Host, or fabric::Verbs.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Machine = exec::Host;
#else
struct Machine {};
#endif
template class mori_ep::transport::detail::NetworkLink<fabric::Loopback<>, Machine>;
