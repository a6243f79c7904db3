// SPDX-License-Identifier: MIT
//! @file One phase of all ranks on the GPUs: from one start event over a stream for each rank to one end event.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gpu/runtime.hpp"
#include "mori_ep/launch/launch_params.hpp"

namespace ep_bench::gpu {

//! @brief Keeps a stream busy until the host opens it, so that what is enqueued behind need not wait for the host.
class Gate {
 public:
  Gate() : open_(reinterpret_cast<std::uint32_t*>(Exec::allocate_board(sizeof(std::uint32_t)))) {
    if (open_ == nullptr) throw std::runtime_error("no pinned memory for a word");
  }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { Exec::release_board(reinterpret_cast<std::byte*>(open_), sizeof(std::uint32_t)); }

  void close(Stream stream);
  void open() noexcept { std::atomic_ref(*open_).store(1, std::memory_order_release); }

 private:
  std::uint32_t* open_;
};

//! @brief A captured phase.
class Graph {
 public:
  explicit Graph(MORI_EP_RT(Graph_t) graph) : graph_(graph) {
    require(MORI_EP_RT(GraphInstantiateWithFlags)(&exec_, graph, 0), "instantiating a graph");
  }
  Graph(Graph&& other) noexcept
      : graph_(std::exchange(other.graph_, nullptr)), exec_(std::exchange(other.exec_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(exec_, other.exec_);
    return *this;
  }
  ~Graph() {
    if (exec_ != nullptr) (void)MORI_EP_RT(GraphExecDestroy)(exec_);
    if (graph_ != nullptr) (void)MORI_EP_RT(GraphDestroy)(graph_);
  }
  void enqueue(Stream stream) const { require(MORI_EP_RT(GraphLaunch)(exec_, stream), "launching a graph"); }
  //! @brief The geometry of the first kernel in it.
  [[nodiscard]] mori_ep::launch::LaunchParams geometry() const;

 private:
  MORI_EP_RT(Graph_t) graph_;
  MORI_EP_RT(GraphExec_t) exec_ = nullptr;
};

//! @brief Streams, one for each rank and one that all leave from and come back to.
class Launcher {
 public:
  //! Enqueues one rank's work on its stream; the rank's device is current.
  using Enqueue = std::function<void(int rank, Stream stream)>;
  //! A phase: enqueued anew each time, or captured once and replayed.
  struct Phase {
    Enqueue each;
    std::optional<Graph> graph;
  };

  Launcher(int world, int devices, bool sweeps);

  [[nodiscard]] int device_of(int rank) const { return rank * devices_ / world_; }
  [[nodiscard]] Stream stream_of(int rank) const { return ranks_[static_cast<std::size_t>(rank)].stream->handle(); }
  [[nodiscard]] Graph capture(const Enqueue& each);
  //! @brief A phase of `blocks` x `warps` empty kernels, one for each rank.
  [[nodiscard]] static Enqueue empty_kernels(const mori_ep::launch::LaunchParams& geometry);

  void run(const Phase& phase);
  [[nodiscard]] double time_us(const Phase& phase);

 private:
  struct PerRank {
    std::unique_ptr<Exec::Stream> stream;
    Event done;
  };
  void enqueue(const Phase& phase);
  void fork_and_join(const Enqueue& each);
  void sweep();

  int world_, devices_;
  std::unique_ptr<Exec::Stream> stream_;
  Event start_, fork_, end_;
  Gate gate_;
  std::vector<PerRank> ranks_;
  std::vector<DeviceBuffer<std::uint32_t>> swept_;  // by device
};

}  // namespace ep_bench::gpu
