// SPDX-License-Identifier: MIT
//! @file The library's version; CMake reads it from here.
#pragma once

#define MORI_EP_VERSION_MAJOR 0
#define MORI_EP_VERSION_MINOR 1
#define MORI_EP_VERSION_PATCH 0
