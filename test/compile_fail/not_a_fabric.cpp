// SPDX-License-Identifier: MIT
// expect-error: fabric::Proxy: the parameter must be a fabric. Use fabric::Verbs or fabric::Loopback.
#include "mori_ep/fabric/loopback.hpp"
#include "mori_ep/fabric/proxy.hpp"
using namespace mori_ep;

#ifdef GOOD
using Fabric = fabric::Loopback<fabric::Order::none>;
#else
using Fabric = fabric::Order;
#endif
template class mori_ep::fabric::Proxy<Fabric>;
