// SPDX-License-Identifier: MIT
//! @file What differs between GPU targets, in one trait each: warp width, memory order, clocks, cache hints. Everything
//!       else in exec/gpu is written against `Target`.
#pragma once

#include "mori_ep/exec/gpu/target_amd.hpp"
#include "mori_ep/exec/gpu/target_nvidia.hpp"
