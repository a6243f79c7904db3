// SPDX-License-Identifier: MIT
//! @file exec::Host with a place to interfere at every step of a kernel that its peers can notice.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <thread>
#include <utility>

#include "mori_ep/exec/host/host.hpp"

namespace mori_ep::test {

//! @brief What happens at a step of this process's kernels: one process, one victim.
struct StepHook {
  enum class Action { none, die, halt, sleep };
  static inline std::atomic<std::int64_t> steps{0};  //!< passed so far
  static inline std::int64_t at = -1;                //!< the step before which `action` is taken
  static inline Action action = Action::none;
  static inline std::chrono::milliseconds nap{0};

  static void pass() noexcept {
    if (steps.fetch_add(1, std::memory_order_relaxed) != at) return;
    if (action == Action::die) ::raise(SIGKILL);
    if (action == Action::halt) ::raise(SIGSTOP);
    if (action == Action::sleep) std::this_thread::sleep_for(nap);
  }
};

//! @brief Passes the hook before whatever moves data or says something to a peer, or waits for one.
class HookedContext : public exec::host::Context {
 public:
  using Base = exec::host::Context;
  explicit HookedContext(const Base& base) noexcept : Base(base) {}

  void signal(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const noexcept {
    StepHook::pass();
    Base::signal(word, epoch, payload);
  }
  void signal_after_launch(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const noexcept {
    StepHook::pass();
    Base::signal_after_launch(word, epoch, payload);
  }
  void post(std::uint64_t* word, std::uint32_t epoch, std::uint32_t payload) const noexcept {
    StepHook::pass();
    Base::post(word, epoch, payload);
  }
  template <class Place>
  void multicast_row(const std::byte* src, std::byte* const* dst, Place&& place, std::size_t bytes, int part,
                     int parts) const noexcept {
    StepHook::pass();
    Base::multicast_row(src, dst, std::forward<Place>(place), bytes, part, parts);
  }
  template <CodedRowType R, class Place>
  void encode_row(const std::byte* src, std::byte* const* payloads, std::byte* const* scales, Place&& place,
                  std::size_t elements, int part, int parts) const noexcept {
    StepHook::pass();
    Base::encode_row<R>(src, payloads, scales, std::forward<Place>(place), elements, part, parts);
  }
  template <RowForm R, bool Weighted>
  void reduce_rows(const std::byte* const* srcs, const float* weights, int n, std::uint32_t group_starts,
                   std::byte* dst, std::size_t elements, int part, int parts) const noexcept {
    StepHook::pass();
    Base::reduce_rows<R, Weighted>(srcs, weights, n, group_starts, dst, elements, part, parts);
  }
  exec::WaitResult wait(std::uint64_t* word, std::uint32_t epoch, const exec::WaitLimits& limits,
                        exec::WaitOrder order = exec::WaitOrder::acquire) noexcept {
    StepHook::pass();
    return Base::wait(word, epoch, limits, order);
  }
};

struct HookedHost : exec::Host {
  static constexpr const char* kName = "hooked host";

  template <class Kernel>
  struct Hooked {
    Kernel kernel;
    template <class Ctx>
    void operator()(Ctx& ctx) const {
      HookedContext hooked(ctx);
      kernel(hooked);
    }
  };
  template <class Kernel>
  static Status launch(const exec::LaunchGeometry& geometry, const Kernel& kernel, StreamRef stream) noexcept {
    return exec::Host::launch(geometry, Hooked<Kernel>{kernel}, stream);
  }
};

}  // namespace mori_ep::test
