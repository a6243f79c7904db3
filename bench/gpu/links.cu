// SPDX-License-Identifier: MIT
#include "gpu/links.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "mori_ep/exec/gpu/target.hpp"

namespace ep_bench::gpu {
namespace {

using mori_ep::exec::gpu::Target;
using mori_ep::exec::gpu::Vec16;

constexpr int kMostDevices = 16;
constexpr std::size_t kPlace = LinkYardstick::kPlaceBytes / sizeof(Vec16);

//! The other devices' memory, each device beginning with another.
struct Peers {
  Vec16* of[kMostDevices];
  int count;
};

//! A vector is read once and stored to every other device, as a dispatch does.
template <int kUnroll>
__global__ void __launch_bounds__(512) push(const Vec16* own, Peers to, std::size_t count) {
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t at = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < count;
       at += stride * kUnroll) {
    Vec16 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (at + u * stride < count) v[u] = Target::load_row(own + at + u * stride);
#pragma unroll 1
    for (int p = 0; p < to.count; ++p)
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (at + u * stride < count) Target::store_row(to.of[p] + at + u * stride, v[u]);
  }
}

//! The vectors of all other devices are read, added word by word and stored once, as a combine does.
template <int kUnroll>
__global__ void __launch_bounds__(512) pull(Vec16* own, Peers from, std::size_t count) {
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t at = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < count;
       at += stride * kUnroll) {
    Vec16 sum[kUnroll], v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (at + u * stride < count) sum[u] = Target::load_row(from.of[0] + at + u * stride);
#pragma unroll 1
    for (int p = 1; p < from.count; ++p) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        if (at + u * stride < count) v[u] = Target::load_row(from.of[p] + at + u * stride);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
#pragma unroll
        for (int w = 0; w < 4; ++w) sum[u].word[w] += v[u].word[w];
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
      if (at + u * stride < count) Target::store_row(own + at + u * stride, sum[u]);
  }
}

}  // namespace

LinkYardstick::LinkYardstick(int devices) : units_(0) {
  if (devices > kMostDevices)
    throw UsageError("--devices is " + std::to_string(devices) + ", limit " + std::to_string(kMostDevices) +
                     " for ranks on several devices. Give fewer.");
  for (int device = 0; device < devices; ++device) {
    set_device(device);
    units_ = properties_of(device).multiProcessorCount;
    std::uint64_t const reachable = Exec::reachable();
    for (int peer = 0; peer < devices; ++peer)
      if ((reachable >> peer & 1) == 0)
        throw UsageError("--devices " + std::to_string(devices) + ": device " + std::to_string(device) +
                         " does not reach the memory of device " + std::to_string(peer) +
                         ". Give fewer, or choose devices linked to each other (CUDA_VISIBLE_DEVICES).");
    require(Exec::share_memory());
    Device& d = devices_.emplace_back();
    d.sent = DeviceBuffer<Vec16>(kPlace);
    d.received = DeviceBuffer<Vec16>(static_cast<std::size_t>(devices) * kPlace);
    for (int peer = 1; peer < devices; ++peer) {
      d.streams.push_back(std::make_unique<Exec::Stream>());
      d.begins.emplace_back(true);
      d.ends.emplace_back(true);
    }
  }
  set_device(0);
}

std::vector<double> LinkYardstick::sample(int streams, const Part& part) {
  constexpr int kSamples = 7;
  double const bytes = static_cast<double>((devices_.size() - 1) * kPlaceBytes);
  auto const each = [&](auto&& f) {
    for (std::size_t d = 0; d < devices_.size(); ++d) {
      set_device(static_cast<int>(d));
      for (int s = 0; s < streams; ++s) f(static_cast<int>(d), devices_[d], static_cast<std::size_t>(s));
    }
  };
  std::vector<double> gbps;
  for (int i = -1; i < kSamples; ++i) {
    each([&](int, Device& d, std::size_t s) {
      gate_.close(d.streams[s]->handle());
      d.begins[s].record(d.streams[s]->handle());
    });
    try {
      each([&](int device, Device& d, std::size_t s) {
        part(device, static_cast<int>(s), d.streams[s]->handle());
        d.ends[s].record(d.streams[s]->handle());
      });
    } catch (...) {
      gate_.open();
      throw;
    }
    gate_.open();
    double longest_us = 0;
    each([&](int, Device& d, std::size_t s) {
      require(MORI_EP_RT(StreamSynchronize)(d.streams[s]->handle()), "measuring a link");
      longest_us = std::max(longest_us, d.ends[s].us_since(d.begins[s]));
    });
    if (i >= 0) gbps.push_back(bytes / longest_us / 1e3);
  }
  set_device(0);
  return gbps;
}

std::vector<double> LinkYardstick::copies() {
  auto const count = static_cast<int>(devices_.size());
  return sample(count - 1, [&](int device, int s, Stream stream) {
    int const peer = (device + 1 + s) % count;
    Device& to = devices_[static_cast<std::size_t>(peer)];
    require(MORI_EP_RT(MemcpyPeerAsync)(to.received.data() + static_cast<std::size_t>(device) * kPlace, peer,
                                        devices_[static_cast<std::size_t>(device)].sent.data(), device, kPlaceBytes,
                                        stream),
            "copying between devices");
  });
}

std::vector<double> LinkYardstick::best(bool pushes, std::string& how, Ceilings::Tried& tried) {
  auto const count = static_cast<int>(devices_.size());
  constexpr int kThreads = 512, kResident = 2;  // blocks a multiprocessor, as a schedule's
  std::vector<double> found;
  double best_gbps = 0;
  tried.clear();
  for (int unroll : {1, 2, 4})
    for (int blocks : {16, units_ / 4, units_ / 2, units_, kResident * units_}) {
      auto samples = sample(1, [&](int device, int, Stream stream) {
        Peers peers{.of = {}, .count = count - 1};
        for (int p = 1; p < count; ++p) {
          Device& peer = devices_[static_cast<std::size_t>((device + p) % count)];
          peers.of[p - 1] =
              pushes ? peer.received.data() + static_cast<std::size_t>(device) * kPlace : peer.sent.data();
        }
        Device& own = devices_[static_cast<std::size_t>(device)];
        auto const launch = [&](auto kernel, Vec16* memory) {
          kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(memory, peers, kPlace);
        };
        if (pushes)
          launch(unroll == 1 ? push<1> : unroll == 2 ? push<2> : push<4>, own.sent.data());
        else
          launch(unroll == 1 ? pull<1> : unroll == 2 ? pull<2> : pull<4>, own.received.data());
        require(MORI_EP_RT(GetLastError)(), "launching a loop");
      });
      tried.push_back({std::to_string(blocks) + " blocks of " + std::to_string(kThreads) + " threads, " +
                           std::to_string(unroll) + (unroll == 1 ? " vector" : " vectors") + " at once",
                       true, percentile(samples, 50)});
      if (tried.back().gbps <= best_gbps) continue;
      best_gbps = tried.back().gbps;
      how = tried.back().how;
      found = std::move(samples);
    }
  return found;
}

void LinkYardstick::measure(Links& links) {
  auto const add = [](std::vector<double>& to, const std::vector<double>& samples) {
    to.insert(to.end(), samples.begin(), samples.end());
  };
  add(links.copy_gbps, copies());
  add(links.push_gbps, best(true, links.push_how, links.push_tried));
  add(links.pull_gbps, best(false, links.pull_how, links.pull_tried));
}

}  // namespace ep_bench::gpu
