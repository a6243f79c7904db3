// SPDX-License-Identifier: MIT
//! @file What the double link is there to catch: a function that lost its `inline`.
#pragma once

int planted_not_inline() { return 1; }
