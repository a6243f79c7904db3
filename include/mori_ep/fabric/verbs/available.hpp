// SPDX-License-Identifier: MIT
//! @file Whether this translation unit can speak to libibverbs: its header is there, and nobody has said not to.
#pragma once

#if __has_include(<infiniband/verbs.h>) && !defined(MORI_EP_WITHOUT_VERBS)
#define MORI_EP_HAS_VERBS 1
#else
#define MORI_EP_HAS_VERBS 0
#endif
