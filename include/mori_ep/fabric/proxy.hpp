// SPDX-License-Identifier: MIT
//! @file The proxy: a thread that carries kernels' commands to a network.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "mori_ep/error.hpp"
#include "mori_ep/fabric/command_ring.hpp"
#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/proxy/idle.hpp"
#include "mori_ep/fabric/proxy/pump.hpp"

namespace mori_ep::fabric {

struct ProxyOptions {
  OnFault on_fault = nullptr;                                        //!< how kernels hear of a peer that has failed
  std::chrono::nanoseconds stop_timeout = std::chrono::seconds(10);  //!< the bound on stop()
  std::chrono::microseconds longest_sleep{200};  //!< of an idle proxy, and what a first command may wait
};

//! @brief Serves one endpoint of a fabric, alone, and the rings of its rank's kernels. Any number in a process.
//!
//! Order     commands of one ring to one queue pair are posted in their order. What a receiver may conclude is what the
//!           fabric promises (Fabric::kOrder): where that is Order::none, a put_signal speaks for its own bytes, and a
//!           signal for nothing else.
//! Full      a queue pair that takes no more is polled and tried again; its commands wait in their ring, and a full
//!           ring makes its writers wait. Nothing is lost and nothing is an error.
//! Ends      a slot is free when its command and all before it in the ring have ended.
//! Errors    the first failed request of a peer is told to `on_fault` and kept (status(peer)); later commands to that peer
//!           end at once without a post. Other peers' commands go on.
//! Idle      it spins, yields, then sleeps, for at most `longest_sleep` at a time.
//!
//! The fabric, the rings and whatever `on_fault` writes outlive it.
template <class F>
class Proxy {
  static_assert(Fabric<F>, "fabric::Proxy: the parameter must be a fabric. Use fabric::Verbs or fabric::Loopback.");

 public:
  Proxy(F& fabric, std::vector<CommandReader> rings, ProxyOptions options = {})
      : options_(std::move(options)),
        pump_(fabric, std::move(rings), std::move(options_.on_fault)),
        thread_([this] { run(); }) {}
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;
  ~Proxy() { (void)stop(); }

  //! @brief Ends the thread when every published command has ended, or after `stop_timeout`: then a timeout names how
  //!        many have not, and a peer that some of them went to. No kernel pushes meanwhile. Later calls say the same.
  Status stop() {
    if (!thread_.joinable()) return stopped_;
    stop_at_ = std::chrono::steady_clock::now() + options_.stop_timeout;
    stopping_.store(true, std::memory_order_release);
    thread_.join();
    if (!pump_.idle())
      stopped_ = Error{.code = Errc::fabric_error,
                       .rank = pump_.fabric().rank(),
                       .peer = pump_.awaited(),
                       .field = "commands that have not ended",
                       .value = pump_.unfinished(),
                       .limit = 0,
                       .hint = "The network did not complete them in time. Is the peer alive?"};
    return stopped_;
  }

  //! @brief The error of the first request to `peer` that failed. Any thread asks.
  [[nodiscard]] Status status(int peer) const noexcept { return pump_.status(peer); }
  [[nodiscard]] const ProxyCounters& counters() const noexcept { return pump_.counters(); }

 private:
  void run() {
    for (proxy::Idle idle(options_.longest_sleep);;) {
      bool const moved = pump_.step();
      if (stopping_.load(std::memory_order_acquire) &&
          (std::chrono::steady_clock::now() >= stop_at_ || (!moved && pump_.idle())))
        return;
      moved ? idle.reset() : idle.pause();
    }
  }

  ProxyOptions options_;
  proxy::Pump<F> pump_;
  std::chrono::steady_clock::time_point stop_at_{};
  std::atomic<bool> stopping_{false};
  Status stopped_;
  std::thread thread_;  // last: it starts when all the rest is there
};

}  // namespace mori_ep::fabric
