// SPDX-License-Identifier: MIT
//! @file LocalWorld: W ranks as threads of this process.
#pragma once

#include <chrono>
#include <concepts>
#include <exception>
#include <memory>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/thread_bootstrap.hpp"

namespace mori_ep::comm {

//! @brief A world inside one process: for tests, demos, one-process engines, and many ranks on one GPU.
//!
//! Ranks are threads, and a thread's device is its own: on a machine of several GPUs a rank begins with
//! `exec::Cuda::use_device(comm.rank() * exec::Cuda::device_count() / comm.world())` (or exec::Hip). Ranks may share a
//! device.
//!
//! `gpu_per_node` groups the ranks into nodes (0: all in one). `timeout` bounds the collective host calls.
class LocalWorld {
 public:
  //! @brief Of `environment` the heap's limit counts, for each rank.
  explicit LocalWorld(int world, int gpu_per_node = 0, std::chrono::nanoseconds timeout = std::chrono::seconds(60),
                      const Environment& environment = {})
      : asked_(world),
        environment_(environment),
        hub_(std::make_shared<ThreadHub>(world > 0 ? world : 1, timeout)),
        gpu_per_node_(gpu_per_node > 0 ? gpu_per_node : hub_->world()) {}

  [[nodiscard]] int world() const noexcept { return hub_->world(); }

  //! @brief The membership of one rank; each rank uses its own from a thread of its own.
  [[nodiscard]] Communicator communicator(int rank) const {
    return {std::make_shared<ThreadBootstrap>(hub_, rank), gpu_per_node_, environment_};
  }

  //! @brief Runs `rank_main(Communicator&)` once per rank, each in its own thread, and waits for all of them.
  //! @return ok, or the failed Status of the lowest rank that failed by itself (before those that failed because a peer
  //!        did: timeouts, peer faults, missing ranks); rank_main may also return nothing. What rank_main throws is
  //!        thrown here when all ranks have ended (the lowest throwing rank's; std::terminate without exceptions).
  template <class F>
  requires std::invocable<F&, Communicator&> Status run(F&& rank_main) {
    if (asked_ < 1)
      return Error{.code = Errc::invalid_config,
                   .field = "world",
                   .value = asked_,
                   .limit = 1,
                   .hint = "A world has at least one rank."};
    std::vector<Status> results(static_cast<std::size_t>(world()));
#if defined(__cpp_exceptions)
    std::vector<std::exception_ptr> thrown(results.size());
#endif
    std::vector<std::thread> threads;
    threads.reserve(results.size());
    auto const start = [&](int rank) {
      threads.emplace_back([&, rank] {
        Communicator self = communicator(rank);
        auto const call = [&] {
          using Returned = std::invoke_result_t<F&, Communicator&>;
          static_assert(std::is_void_v<Returned> || std::is_convertible_v<Returned, Status>,
                        "LocalWorld::run: rank_main returns a Status or nothing, so that no error is lost. Return "
                        "result.status() of a Result.");
          if constexpr (std::is_void_v<Returned>)
            rank_main(self);
          else
            results[static_cast<std::size_t>(rank)] = rank_main(self);
        };
#if defined(__cpp_exceptions)
        try {
          call();
        } catch (...) {
          thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        }
#else
        call();
#endif
      });
    };
    for (int rank = 0; rank < world(); ++rank) {
#if defined(__cpp_exceptions)
      try {
        start(rank);
      } catch (const std::system_error& refused) {
        // Those that have started miss it in their first call among all.
        results[static_cast<std::size_t>(rank)] =
            Error{.code = Errc::system_error,
                  .rank = rank,
                  .field = "thread of a rank",
                  .value = refused.code().value(),
                  .hint = "The system starts no more: raise the limits on threads and memory (ulimit -u, -v)."};
        break;
      }
#else
      start(rank);
#endif
    }
    for (auto& thread : threads) thread.join();
#if defined(__cpp_exceptions)
    for (const std::exception_ptr& error : thrown)
      if (error) std::rethrow_exception(error);
#endif
    const Status* consequence = nullptr;
    for (const Status& result : results) {
      if (result.ok()) continue;
      Errc const code = result.code();
      bool const by_a_peer = code == Errc::peer_fault || code == Errc::timeout || code == Errc::missing_rank;
      if (!by_a_peer) return result;
      if (consequence == nullptr) consequence = &result;
    }
    return consequence != nullptr ? *consequence : Status{};
  }

 private:
  int asked_;
  Environment environment_;
  std::shared_ptr<ThreadHub> hub_;
  int gpu_per_node_;
};

}  // namespace mori_ep::comm
