// SPDX-License-Identifier: MIT
//! @file Verbs: a fabric of RDMA cards, or of soft-RoCE, through libibverbs and reliable connections.
#pragma once

#include "mori_ep/fabric/verbs/available.hpp"
#if MORI_EP_HAS_VERBS
#include "mori_ep/fabric/verbs/connected.hpp"
#else
#include "mori_ep/fabric/verbs/missing.hpp"
#endif

namespace mori_ep::fabric {

#if MORI_EP_HAS_VERBS
using Verbs = VerbsConnected;
#else
using Verbs = VerbsMissing;
#endif

}  // namespace mori_ep::fabric
