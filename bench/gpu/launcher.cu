// SPDX-License-Identifier: MIT
#include "gpu/launcher.hpp"

#include <cstddef>

#include "mori_ep/exec/gpu/target.hpp"

namespace ep_bench::gpu {
namespace {

using mori_ep::exec::gpu::Target;

__global__ void empty() {}

//! Opens by itself after a while: the host may have thrown.
__global__ void wait_for_host(const std::uint32_t* open) {
  std::uint64_t const begin = Target::clock_ns();
  while (Target::load_acquire_system(open) == 0 && Target::clock_ns() - begin < 2'000'000'000u) Target::nap();
}

//! Reads, since written lines would have to leave the cache while the phase after it is timed.
__global__ void read_all(std::uint32_t* memory, std::size_t words) {
  std::uint32_t seen = 0;
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += stride)
    seen |= memory[i];
  if (seen != 0) *memory = 0;  // never: the memory is zero
}

}  // namespace

void Gate::close(Stream stream) {
  std::atomic_ref(*open_).store(0, std::memory_order_release);
  wait_for_host<<<1, 1, 0, stream>>>(open_);
  require(MORI_EP_RT(GetLastError)(), "launching the gate");
}

mori_ep::launch::LaunchParams Graph::geometry() const {
  std::size_t count = 0;
  require(MORI_EP_RT(GraphGetNodes)(graph_, nullptr, &count), "reading a graph");
  std::vector<MORI_EP_RT(GraphNode_t)> nodes(count);
  require(MORI_EP_RT(GraphGetNodes)(graph_, nodes.data(), &count), "reading a graph");
  for (auto node : nodes) {
    MORI_EP_RT(GraphNodeType) type;
    require(MORI_EP_RT(GraphNodeGetType)(node, &type), "reading a graph");
    if (type != MORI_EP_RT(GraphNodeTypeKernel)) continue;
    MORI_EP_RT(KernelNodeParams) params{};
    require(MORI_EP_RT(GraphKernelNodeGetParams)(node, &params), "reading a graph");
    return {.block_num = static_cast<int>(params.gridDim.x),
            .warp_per_block = static_cast<int>(params.blockDim.x) / Target::lanes};
  }
  throw std::runtime_error("a captured phase has no kernel");
}

Launcher::Launcher(int world, int devices, bool sweeps)
    : world_(world),
      devices_(devices),
      stream_((set_device(0), std::make_unique<Exec::Stream>())),
      start_(true),
      fork_(false),
      end_(true) {
  for (int rank = 0; rank < world; ++rank) {
    set_device(device_of(rank));
    ranks_.push_back({std::make_unique<Exec::Stream>(), Event(false)});
  }
  for (int device = 0; sweeps && device < devices; ++device) {
    set_device(device);
    swept_.emplace_back(static_cast<std::size_t>(properties_of(device).l2CacheSize));  // words: four times the cache
  }
  set_device(0);
}

Launcher::Enqueue Launcher::empty_kernels(const mori_ep::launch::LaunchParams& geometry) {
  return [geometry](int, Stream stream) {
    empty<<<static_cast<unsigned>(geometry.block_num), static_cast<unsigned>(geometry.warp_per_block * Target::lanes),
            0, stream>>>();
    require(MORI_EP_RT(GetLastError)(), "launching an empty kernel");
  };
}

void Launcher::fork_and_join(const Enqueue& each) {
  fork_.record(stream_->handle());
  for (int rank = 0; rank < world_; ++rank) {
    const PerRank& r = ranks_[static_cast<std::size_t>(rank)];
    set_device(device_of(rank));
    fork_.hold_back(r.stream->handle());
    each(rank, r.stream->handle());
    r.done.record(r.stream->handle());
    r.done.hold_back(stream_->handle());
  }
  set_device(0);
}

Graph Launcher::capture(const Enqueue& each) {
  require(MORI_EP_RT(StreamBeginCapture)(stream_->handle(), MORI_EP_RT(StreamCaptureModeThreadLocal)), "capturing");
  fork_and_join(each);
  MORI_EP_RT(Graph_t) graph = nullptr;
  require(MORI_EP_RT(StreamEndCapture)(stream_->handle(), &graph), "capturing");
  return Graph(graph);
}

void Launcher::enqueue(const Phase& phase) {
  if (phase.graph)
    phase.graph->enqueue(stream_->handle());
  else
    fork_and_join(phase.each);
}

void Launcher::run(const Phase& phase) {
  set_device(0);
  enqueue(phase);
  require(MORI_EP_RT(StreamSynchronize)(stream_->handle()), "running a phase");
}

void Launcher::sweep() {
  for (int device = 0; device < static_cast<int>(swept_.size()); ++device) {
    set_device(device);
    auto const& words = swept_[static_cast<std::size_t>(device)];
    read_all<<<1024, 512>>>(words.data(), words.size());
    require(MORI_EP_RT(GetLastError)(), "sweeping the cache");
    finish();
  }
  set_device(0);
}

double Launcher::time_us(const Phase& phase) {
  sweep();
  set_device(0);
  gate_.close(stream_->handle());
  start_.record(stream_->handle());
  try {
    enqueue(phase);
  } catch (...) {
    gate_.open();
    throw;
  }
  end_.record(stream_->handle());
  gate_.open();
  require(MORI_EP_RT(StreamSynchronize)(stream_->handle()), "running a phase");
  return end_.us_since(start_);
}

}  // namespace ep_bench::gpu
