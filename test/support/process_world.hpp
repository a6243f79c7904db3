// SPDX-License-Identifier: MIT
//! @file Ranks as processes: what LocalWorld does with threads, with forks that join over TCP.
#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <exception>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mori_ep/comm/tcp_bootstrap.hpp"
#include "mori_ep/mori_ep.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

//! @brief MORI_EP_TEST_PROCESSES=1: plans are played with ranks that are processes.
inline bool ranks_are_processes() {
  static bool const processes = env_number("MORI_EP_TEST_PROCESSES", 0) != 0;
  return processes;
}

//! @brief Memory that forks share, zeroed.
template <class T>
class SharedArray {
 public:
  static_assert(std::is_trivially_copyable_v<T>);
  explicit SharedArray(std::size_t n) : bytes_(n * sizeof(T)) {
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<T*>(memory);
  }
  SharedArray(const SharedArray&) = delete;
  SharedArray& operator=(const SharedArray&) = delete;
  ~SharedArray() { ::munmap(data_, bytes_); }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  std::size_t bytes_;
  T* data_;
};

//! @brief W forks of this process, which must have one thread. What `rank_main` changes is lost but for memory that
//!        forks share; pointers to what was there before mean the same in all.
class ProcessWorld {
 public:
  explicit ProcessWorld(int world, int gpu_per_node = 0, std::chrono::nanoseconds timeout = std::chrono::seconds(60))
      : world_(world), gpu_per_node_(gpu_per_node), timeout_(timeout) {}

  //! @brief What a rank's process came to.
  struct Outcome {
    Error error;            //!< of rank_main, or of the join
    char thrown[192] = "";  //!< what it threw
    int done = 0;
    int status = 0;  //!< as waitpid(2) tells it
  };

  //! @brief Starts all ranks; rank_main(Communicator&) gives a Status.
  template <class F>
  void start(F&& rank_main) {
    auto root = comm::get_unique_id(loopback());
    root.status().or_throw();
    comm::UniqueId const id = root->id();
    for (int rank = world_ - 1; rank >= 0; --rank) {
      pids_.insert(pids_.begin(), ::fork());
      if (pids_.front() < 0) throw std::runtime_error("fork");
      if (pids_.front() > 0) continue;
      in_child() = true;
      // A fork has the socket that rank 0 listens at, too: while it were open, nobody would see that rank 0 is gone.
      if (rank != 0) (void)(root = Error{.code = Errc::invalid_argument});
      Outcome& outcome = outcomes_[static_cast<std::size_t>(rank)];
      try {
        auto const joined = [&]() -> Result<comm::Communicator> {
          auto bootstrap = rank == 0 ? comm::join_tcp(std::move(*root), world_, loopback())
                                     : comm::join_tcp(id, rank, world_, loopback());
          if (!bootstrap.ok()) return bootstrap.status();
          return comm::Communicator::create(std::move(*bootstrap), {}, gpu_per_node_);
        };
        auto communicator = joined();
        Status const s = communicator.ok() ? rank_main(*communicator) : communicator.status();
        outcome.error = s.error();
      } catch (const std::exception& e) {
        std::strncpy(outcome.thrown, e.what(), sizeof(outcome.thrown) - 1);
      }
      outcome.done = 1;
      std::_Exit(0);  // the parent's tests, files and handlers are not this process's
    }
  }
  [[nodiscard]] pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }
  //! @brief Waits for a rank's process to end.
  Outcome& wait(int rank) {
    Outcome& outcome = outcomes_[static_cast<std::size_t>(rank)];
    auto& process = pids_[static_cast<std::size_t>(rank)];
    if (process > 0) ::waitpid(std::exchange(process, 0), &outcome.status, 0);
    return outcome;
  }
  ~ProcessWorld() {
    for (pid_t const pid : pids_)
      if (pid > 0) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
      }
  }
  ProcessWorld(const ProcessWorld&) = delete;
  ProcessWorld& operator=(const ProcessWorld&) = delete;

  //! @brief start(), then waits for all; the error of the lowest rank that failed by itself.
  template <class F>
  Status run(F&& rank_main) {
    start(std::forward<F>(rank_main));
    Status first;
    for (int rank = 0; rank < world_; ++rank) {
      Outcome const& outcome = wait(rank);
      if (*outcome.thrown != '\0') throw std::runtime_error("rank " + std::to_string(rank) + ": " + outcome.thrown);
      if (outcome.status != 0 || outcome.done == 0)
        throw std::runtime_error("rank " + std::to_string(rank) + " ended with status " +
                                 std::to_string(outcome.status));
      auto const by_a_peer = [](Errc c) {
        return c == Errc::peer_fault || c == Errc::timeout || c == Errc::missing_rank;
      };
      Status const s = outcome.error;
      if (!s.ok() && (first.ok() || (by_a_peer(first.code()) && !by_a_peer(s.code())))) first = s;
    }
    return first;
  }

  [[nodiscard]] comm::TcpOptions loopback() const {
    comm::TcpOptions options;
    options.timeout = timeout_;
    (void)options.interfaces.list.assign("=lo");
    return options;
  }
  //! @brief Is this a rank's process? What it allocates is its own.
  static bool& in_child() noexcept {
    static bool child = false;
    return child;
  }

 private:
  int world_, gpu_per_node_;
  std::chrono::nanoseconds timeout_;
  std::vector<pid_t> pids_;  // by rank; 0: waited for
  SharedArray<Outcome> outcomes_{static_cast<std::size_t>(world_)};
};

}  // namespace mori_ep::test
