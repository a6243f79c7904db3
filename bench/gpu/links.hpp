// SPDX-License-Identifier: MIT
//! @file What GPUs move over the links between them. Only for files that the GPU's compiler reads.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ceilings.hpp"
#include "gpu/gpu.hpp"
#include "gpu/launcher.hpp"
#include "gpu/runtime.hpp"
#include "mori_ep/exec/gpu/vector.hpp"

namespace ep_bench::gpu {

//! @brief Memory on every device and kernels that move it between them, all devices at once.
class LinkYardstick {
 public:
  static constexpr std::size_t kPlaceBytes = GpuCeilings::kLinkPlaceBytes;

  explicit LinkYardstick(int devices);
  //! @brief Adds to the samples of `links`; `tried` and `how` are this time's.
  void measure(Links& links);

 private:
  using Vec16 = mori_ep::exec::gpu::Vec16;
  struct Device {
    DeviceBuffer<Vec16> sent, received;  // [devices, place]
    std::vector<std::unique_ptr<Exec::Stream>> streams;
    std::vector<Event> begins, ends;  // by stream
  };
  //! Enqueues one device's part on one of its streams.
  using Part = std::function<void(int device, int stream, Stream handle)>;

  [[nodiscard]] std::vector<double> sample(int streams, const Part& part);
  [[nodiscard]] std::vector<double> copies();
  [[nodiscard]] std::vector<double> best(bool pushes, std::string& how, Ceilings::Tried& tried);

  std::vector<Device> devices_;
  int units_;
  Gate gate_;
};

}  // namespace ep_bench::gpu
