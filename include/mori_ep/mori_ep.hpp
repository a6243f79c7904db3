// SPDX-License-Identifier: MIT
//! @file All a user includes.
#pragma once

#if __cplusplus < 202002L
#error \
    "mori_ep: it is C++20. Compile with -std=c++20, or link mori_ep::mori_ep, mori_ep::cuda or mori_ep::hip in CMake."
#endif

#include "mori_ep/comm/carried_bootstrap.hpp"
#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/local_world.hpp"
#include "mori_ep/comm/tcp_bootstrap.hpp"
#include "mori_ep/env.hpp"
#include "mori_ep/ep_dispatch_combine.hpp"
#include "mori_ep/error.hpp"
#include "mori_ep/fabric/loopback.hpp"
#include "mori_ep/numeric/element.hpp"
#include "mori_ep/schedule/inter_node.hpp"
#include "mori_ep/schedule/inter_node_v1.hpp"
#include "mori_ep/support_matrix.hpp"
#include "mori_ep/transport/hybrid.hpp"
#include "mori_ep/version.hpp"

namespace mori_ep {

using comm::Communicator;
using comm::get_unique_id;
using comm::join_by_store;
using comm::join_file;
using comm::join_tcp;
using comm::LocalWorld;
using comm::TcpOptions;
using comm::UniqueId;

}  // namespace mori_ep
