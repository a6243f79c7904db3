// SPDX-License-Identifier: MIT
//! @file One phase of all ranks on the GPUs: on each device from a start event over a stream for each rank to an end event.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gpu/runtime.hpp"
#include "mori_ep/launch/launch_params.hpp"
#include "problem.hpp"

namespace ep_bench::gpu {

//! @brief Keeps streams busy until the host opens it, so that what is enqueued behind need not wait for the host.
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

//! @brief Streams, one for each rank and one for each device, which its ranks leave from and come back to.
class Launcher {
 public:
  //! Enqueues one rank's work on its stream; the rank's device is current.
  using Enqueue = std::function<void(int rank, Stream stream)>;
  //! A phase: enqueued anew each time, or captured once, a graph for each device, and replayed.
  struct Phase {
    Enqueue each;
    std::vector<Graph> graphs;
  };

  //! @param config outlives this
  explicit Launcher(const Config& config);

  [[nodiscard]] int device_of(int rank) const { return config_.device_of(rank); }
  [[nodiscard]] Stream stream_of(int rank) const { return ranks_[static_cast<std::size_t>(rank)].stream->handle(); }
  [[nodiscard]] std::vector<Graph> capture(const Enqueue& each);
  //! @brief A phase of `blocks` x `warps` empty kernels, one for each rank.
  [[nodiscard]] static Enqueue empty_kernels(const mori_ep::launch::LaunchParams& geometry);

  void run(const Phase& phase);
  //! @brief The longest that a device took. All begin when the host opens their gate.
  [[nodiscard]] double time_us(const Phase& phase);

 private:
  struct PerRank {
    std::unique_ptr<Exec::Stream> stream;
    Event done;
  };
  struct PerDevice {
    std::unique_ptr<Exec::Stream> stream;
    Event start, fork, end;
    DeviceBuffer<std::uint32_t> swept;
  };
  void enqueue(const Phase& phase, int device);
  void fork_and_join(const Enqueue& each, int device);
  //! Calls `f` with every device current in turn; the first is afterwards.
  template <class F>
  void on_devices(F&& f) {
    for (int device = 0; device < config_.devices; ++device) {
      set_device(device);
      f(device, per_device_[static_cast<std::size_t>(device)]);
    }
    set_device(0);
  }
  void sweep();

  const Config& config_;
  Gate gate_;
  std::vector<PerDevice> per_device_;
  std::vector<PerRank> ranks_;
};

}  // namespace ep_bench::gpu
