// SPDX-License-Identifier: MIT
#include "gpu/launcher.hpp"

#include <algorithm>
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

Launcher::Launcher(const Config& config) : config_(config) {
  for (int device = 0; device < config.devices; ++device) {
    set_device(device);
    per_device_.push_back({.stream = std::make_unique<Exec::Stream>(),
                           .start = Event(true),
                           .fork = Event(false),
                           .end = Event(true),
                           .swept = DeviceBuffer<std::uint32_t>(  // words: four times the cache
                               config.cold ? static_cast<std::size_t>(properties_of(device).l2CacheSize) : 0)});
  }
  for (int rank = 0; rank < config.world; ++rank) {
    set_device(device_of(rank));
    ranks_.push_back({std::make_unique<Exec::Stream>(), Event(false)});
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

void Launcher::fork_and_join(const Enqueue& each, int device) {
  PerDevice& d = per_device_[static_cast<std::size_t>(device)];
  d.fork.record(d.stream->handle());
  for (int rank = 0; rank < config_.world; ++rank) {
    if (device_of(rank) != device) continue;
    const PerRank& r = ranks_[static_cast<std::size_t>(rank)];
    d.fork.hold_back(r.stream->handle());
    each(rank, r.stream->handle());
    r.done.record(r.stream->handle());
    r.done.hold_back(d.stream->handle());
  }
}

std::vector<Graph> Launcher::capture(const Enqueue& each) {
  std::vector<Graph> graphs;
  on_devices([&](int device, PerDevice& d) {
    require(MORI_EP_RT(StreamBeginCapture)(d.stream->handle(), MORI_EP_RT(StreamCaptureModeThreadLocal)), "capturing");
    fork_and_join(each, device);
    MORI_EP_RT(Graph_t) graph = nullptr;
    require(MORI_EP_RT(StreamEndCapture)(d.stream->handle(), &graph), "capturing");
    graphs.emplace_back(graph);
  });
  return graphs;
}

void Launcher::enqueue(const Phase& phase, int device) {
  if (phase.graphs.empty())
    fork_and_join(phase.each, device);
  else
    phase.graphs[static_cast<std::size_t>(device)].enqueue(
        per_device_[static_cast<std::size_t>(device)].stream->handle());
}

void Launcher::run(const Phase& phase) {
  on_devices([&](int device, PerDevice&) { enqueue(phase, device); });
  on_devices([](int, PerDevice& d) { require(MORI_EP_RT(StreamSynchronize)(d.stream->handle()), "running a phase"); });
}

void Launcher::sweep() {
  on_devices([](int, PerDevice& d) {
    read_all<<<1024, 512>>>(d.swept.data(), d.swept.size());
    require(MORI_EP_RT(GetLastError)(), "sweeping the cache");
    finish();
  });
}

double Launcher::time_us(const Phase& phase) {
  if (config_.cold) sweep();
  on_devices([&](int, PerDevice& d) {
    gate_.close(d.stream->handle());
    d.start.record(d.stream->handle());
  });
  try {
    on_devices([&](int device, PerDevice& d) {
      enqueue(phase, device);
      d.end.record(d.stream->handle());
    });
  } catch (...) {
    gate_.open();
    throw;
  }
  gate_.open();
  double longest = 0;
  on_devices([&](int, PerDevice& d) {
    require(MORI_EP_RT(StreamSynchronize)(d.stream->handle()), "running a phase");
    longest = std::max(longest, d.end.us_since(d.start));
  });
  return longest;
}

}  // namespace ep_bench::gpu
