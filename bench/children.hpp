// SPDX-License-Identifier: MIT
//! @file Forks of this process that live and end together.
#pragma once

#include <functional>

namespace ep_bench {

//! @brief Starts `count` forks of this process, which must have one thread, and waits for all of them; `child` is
//!        called with a number from 0 and returns the exit code. When one fails, the others have a few seconds to end by
//!        themselves; those that are stopped cannot, and are killed at once. When this process is killed, so are they. `started` is called here once all are running.
//! @return the exit code of child 0, or of the first that failed; 1 for a signal
[[nodiscard]] int run_children(int count, const std::function<int(int)>& child, const std::function<void()>& started);

}  // namespace ep_bench
