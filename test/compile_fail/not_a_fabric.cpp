// SPDX-License-Identifier: MIT
// expect-error: transport::Hybrid and Rdma: the parameter must be a fabric. Use fabric::Verbs or fabric::Loopback<>.
#include "mori_ep/mori_ep.hpp"
using namespace mori_ep;

#ifdef GOOD
using Fabric = fabric::Loopback<>;
#else
using Fabric = fabric::LoopbackOptions;
#endif
template struct mori_ep::transport::Hybrid<Fabric>;
