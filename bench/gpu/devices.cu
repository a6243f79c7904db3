// SPDX-License-Identifier: MIT
// The devices, and what they move at best.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gpu/gpu.hpp"
#include "gpu/links.hpp"
#include "gpu/runtime.hpp"
#include "gpu/survey.hpp"
#include "machine.hpp"
#include "mori_ep/exec/gpu/target.hpp"

namespace ep_bench {
namespace {

using namespace gpu;
using mori_ep::exec::gpu::Target;
using mori_ep::exec::gpu::Vec16;

constexpr std::size_t kPlaceBytes = GpuCeilings::kPlaceBytes;
constexpr int kPlaces = GpuCeilings::kPlaces;
constexpr std::size_t kCopyBytes = 2 * kPlaceBytes;

__global__ void fill(std::uint32_t* memory, std::size_t words) {
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < words; i += stride) {
    std::uint64_t const mixed = (i + 1) * 0x9e3779b97f4a7c15u;
    memory[i] = static_cast<std::uint32_t>((mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u >> 32);
  }
}

template <bool kStream>
__device__ Vec16 load(const Vec16* p) {
  if constexpr (kStream) return Target::load_row(p);
  return *p;
}
template <bool kStream>
__device__ void store(Vec16* p, const Vec16& v) {
  if constexpr (kStream)
    Target::store_row(p, v);
  else
    *p = v;
}

//! One vector of place 0 to the five others; `at` counts from the start of a place.
template <bool kStream, int kUnroll>
__global__ void __launch_bounds__(1024) read1_write5(Vec16* memory, std::size_t place, std::size_t rounds) {
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t at = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::size_t round = 0; round < rounds; ++round, at += stride * kUnroll) {
    Vec16 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) v[u] = load<kStream>(memory + at + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int to = 1; to < kPlaces; ++to) store<kStream>(memory + to * place + at + u * stride, v[u]);
  }
}

//! The vectors of five places, added word by word, to place 0.
template <bool kStream, int kUnroll>
__global__ void __launch_bounds__(1024) read5_write1(Vec16* memory, std::size_t place, std::size_t rounds) {
  auto const stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t at = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::size_t round = 0; round < rounds; ++round, at += stride * kUnroll) {
    Vec16 v[kUnroll][kPlaces - 1];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u)
#pragma unroll
      for (int from = 1; from < kPlaces; ++from)
        v[u][from - 1] = load<kStream>(memory + from * place + at + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int from = 1; from < kPlaces - 1; ++from)
#pragma unroll
        for (int w = 0; w < 4; ++w) v[u][0].word[w] += v[u][from].word[w];
      store<kStream>(memory + at + u * stride, v[u][0]);
    }
  }
}

class Yardstick {
 public:
  explicit Yardstick(int device)
      : units_((set_device(device), properties_of(device).multiProcessorCount)),
        memory_(kPlaces * kPlaceBytes / sizeof(Vec16)),
        begin_(true),
        end_(true) {
    fill<<<1024, 512, 0, stream_.handle()>>>(reinterpret_cast<std::uint32_t*>(memory_.data()), memory_.bytes() / 4);
    require(MORI_EP_RT(GetLastError)(), "filling memory");
  }

  //! The best distance between source and target: which channels of the memory both meet on depends on it.
  [[nodiscard]] std::vector<double> memcpy_gbps() {
    std::vector<double> found;
    for (std::size_t eighths = 16; eighths <= 8 * (kPlaces - 2); eighths += 1) {
      std::size_t const distance = eighths * kPlaceBytes / 8 / sizeof(Vec16);
      auto samples = sample(2.0 * kCopyBytes, [&] {
        require(MORI_EP_RT(MemcpyAsync)(memory_.data() + distance, memory_.data(), kCopyBytes,
                                        MORI_EP_RT(MemcpyDeviceToDevice), stream_.handle()),
                "copying");
      });
      if (found.empty() || percentile(samples, 50) > percentile(found, 50)) found = std::move(samples);
    }
    return found;
  }
  [[nodiscard]] std::vector<double> read1_write5_gbps(std::string& how, Ceilings::Tried& tried) {
    return best({{read1_write5<false, 1>, false, 1},
                 {read1_write5<false, 2>, false, 2},
                 {read1_write5<false, 4>, false, 4},
                 {read1_write5<true, 1>, true, 1},
                 {read1_write5<true, 2>, true, 2},
                 {read1_write5<true, 4>, true, 4}},
                how, tried);
  }
  [[nodiscard]] std::vector<double> read5_write1_gbps(std::string& how, Ceilings::Tried& tried) {
    return best({{read5_write1<false, 1>, false, 1},
                 {read5_write1<false, 2>, false, 2},
                 {read5_write1<true, 1>, true, 1},
                 {read5_write1<true, 2>, true, 2}},
                how, tried);
  }

 private:
  static constexpr int kSamples = 9;
  using Kernel = void (*)(Vec16*, std::size_t, std::size_t);
  struct Variant {
    Kernel kernel;
    bool streams;
    int unroll;
  };

  //! The samples of the variant and geometry with the best median.
  [[nodiscard]] std::vector<double> best(const std::vector<Variant>& variants, std::string& how,
                                         Ceilings::Tried& tried) {
    tried.clear();
    std::vector<double> found;
    double best_gbps = 0;
    for (auto const& v : variants)
      for (int threads : {256, 512, 1024}) {
        int resident = 0;
        require(MORI_EP_RT(OccupancyMaxActiveBlocksPerMultiprocessor)(&resident, v.kernel, threads, 0), "occupancy");
        for (int blocks_per_unit : {resident, 2 * resident, 16 * resident, 1 << 20}) {
          std::size_t const each = static_cast<std::size_t>(threads) * static_cast<std::size_t>(v.unroll);
          constexpr std::size_t place = kPlaceBytes / sizeof(Vec16);
          std::size_t const blocks =
              std::min(place / each, static_cast<std::size_t>(blocks_per_unit) * static_cast<std::size_t>(units_));
          std::size_t const rounds = place / each / blocks;
          double const moved = static_cast<double>(kPlaces * sizeof(Vec16) * rounds * each * blocks);
          auto samples = sample(moved, [&] {
            v.kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0, stream_.handle()>>>(
                memory_.data(), place, rounds);
            require(MORI_EP_RT(GetLastError)(), "launching a loop");
          });
          tried.push_back({std::to_string(blocks) + " blocks of " + std::to_string(threads) + " threads, " +
                               std::to_string(v.unroll) + (v.unroll == 1 ? " vector" : " vectors") + " at once, " +
                               (v.streams ? "streaming" : "plain") + " access",
                           blocks <= static_cast<std::size_t>(resident) * static_cast<std::size_t>(units_),
                           percentile(samples, 50)});
          if (tried.back().gbps <= best_gbps) continue;
          best_gbps = tried.back().gbps;
          how = tried.back().how;
          found = std::move(samples);
        }
      }
    return found;
  }

  template <class F>
  [[nodiscard]] std::vector<double> sample(double bytes, F&& f) {
    std::vector<double> gbps;
    f();
    for (int i = 0; i < kSamples; ++i) {
      begin_.record(stream_.handle());
      f();
      end_.record(stream_.handle());
      require(MORI_EP_RT(StreamSynchronize)(stream_.handle()), "measuring a ceiling");
      gbps.push_back(bytes / end_.us_since(begin_) / 1e3);
    }
    return gbps;
  }

  int units_;
  Exec::Stream stream_;
  DeviceBuffer<Vec16> memory_;
  Event begin_, end_;
};

//! The kernel module's own version, which the runtime does not tell; empty where it says none.
std::string module_version() {
  std::istringstream words(value_in("/proc/driver/nvidia/version", "NVRM version"));
  for (std::string word; words >> word;)
    if (word.find_first_not_of("0123456789.") == std::string::npos) return word;
  return "";
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

void set_gpu_environment() {
  // Eight ranks wait for each other on one device: streams that share a hardware queue, or a module that is loaded when
  // a kernel is first wanted, would hold back the rank that the others wait for.
  (void)::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  (void)::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

GpuSurvey survey_gpus() {
  GpuSurvey survey{.built_for = Exec::kName, .trouble = "", .devices = {}};
  int visible = 0;
  if (auto const error = MORI_EP_RT(GetDeviceCount)(&visible); error != mori_ep::exec::gpu::kRtSuccess) {
    survey.trouble = MORI_EP_RT(GetErrorString)(error);
    return survey;
  }
  for (int device = 0; device < visible; ++device) {
    auto const p = properties_of(device);
    GpuSurvey::Device found{p.name, static_cast<std::int64_t>(p.totalGlobalMem), {}};
    for (int peer = 0; peer < visible; ++peer) {
      int reaches = 1;
      if (peer != device) require(MORI_EP_RT(DeviceCanAccessPeer)(&reaches, device, peer), "asking for peer access");
      found.reaches.push_back(reaches != 0);
    }
    survey.devices.push_back(std::move(found));
  }
  return survey;
}

Devices open_devices(int used, int world) {
  int visible = 0;
  auto const error = MORI_EP_RT(GetDeviceCount)(&visible);
  if (error != mori_ep::exec::gpu::kRtSuccess || visible == 0)
    throw NoDevice(std::string("--exec ") + Exec::kName + ": no device to run on (" +
                   (visible == 0 && error == mori_ep::exec::gpu::kRtSuccess ? "none is visible"
                                                                            : MORI_EP_RT(GetErrorString)(error)) +
                   "). Run on a machine with a GPU and its driver, or give --exec host.");
  if (used > visible || used > world)
    throw UsageError("--devices is " + std::to_string(used) + ", limit " + std::to_string(std::min(visible, world)) +
                     ": " + std::to_string(visible) + " visible for " + std::to_string(world) +
                     " ranks. Give 1 to the limit.");
  auto const p = properties_of(0);
  int driver = 0, runtime = 0;
  require(MORI_EP_RT(DriverGetVersion)(&driver), "asking for the driver's version");
  require(MORI_EP_RT(RuntimeGetVersion)(&runtime), "asking for the runtime's version");
  auto const module = module_version();
  return {.used = used,
          .visible = visible,
          .name = p.name,
          .driver = module.empty() ? "for " + version_text(driver) : module + " for " + version_text(driver),
          .runtime = version_text(runtime),
          .units = p.multiProcessorCount,
          .cache_bytes = p.l2CacheSize,
          .memory_bytes = static_cast<std::int64_t>(p.totalGlobalMem)};
}

struct GpuCeilings::Yardsticks {
  std::vector<std::unique_ptr<Yardstick>> of_device;
  std::optional<LinkYardstick> links;
};

GpuCeilings::GpuCeilings(int devices) : yardsticks_(std::make_shared<Yardsticks>()) {
  for (int device = 0; device < devices; ++device)
    yardsticks_->of_device.push_back(std::make_unique<Yardstick>(device));
  if (devices > 1) yardsticks_->links.emplace(devices);
  set_device(0);
  copiers = devices;
  bytes_each = kCopyBytes;
  how = "device-to-device copy of " + std::to_string(bytes_each >> 20) + " MiB";
  if (devices > 1) how += " on each of " + std::to_string(devices) + " devices, added up";
}

void GpuCeilings::measure() {
  std::vector<double> copies, writes, reads;
  auto const add = [](std::vector<double>& sums, const std::vector<double>& samples) {
    sums.resize(samples.size());
    for (std::size_t i = 0; i < samples.size(); ++i) sums[i] += samples[i];
  };
  for (int device = 0; device < copiers; ++device) {
    set_device(device);
    Yardstick& yardstick = *yardsticks_->of_device[static_cast<std::size_t>(device)];
    add(copies, yardstick.memcpy_gbps());
    add(writes, yardstick.read1_write5_gbps(read1_write5_how, read1_write5_tried));
    add(reads, yardstick.read5_write1_gbps(read5_write1_how, read5_write1_tried));
  }
  set_device(0);
  if (yardsticks_->links) yardsticks_->links->measure(links);
  memcpy_gbps.insert(memcpy_gbps.end(), copies.begin(), copies.end());
  read1_write5_gbps.insert(read1_write5_gbps.end(), writes.begin(), writes.end());
  read5_write1_gbps.insert(read5_write1_gbps.end(), reads.begin(), reads.end());
}

}  // namespace ep_bench
