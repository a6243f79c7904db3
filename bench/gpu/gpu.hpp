// SPDX-License-Identifier: MIT
//! @file The same measurements with all ranks on GPUs: what the rest of ep_bench sees, free of the runtime's headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "ceilings.hpp"
#include "problem.hpp"
#include "run.hpp"

namespace ep_bench {

//! @brief There is no GPU to run on. Exit code 3.
struct NoDevice : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! @brief The devices that a run uses.
struct Devices {
  int used = 0, visible = 0;
  std::string name;              //!< of the first
  std::string driver, runtime;   //!< versions; the driver also says which newest runtime it serves
  int units = 0;                 //!< multiprocessors
  std::int64_t cache_bytes = 0;  //!< second level
  std::int64_t memory_bytes = 0;
};

//! @brief To be called before anything else touches the runtime: ranks that share a GPU wait for each other there.
void set_gpu_environment();

//! @throw NoDevice, or UsageError when fewer are visible than asked for or this program was built without GPUs
[[nodiscard]] Devices open_devices(int used, int world);

//! @throw UsageError when the problem does not fit the devices' free memory
void check_device_memory(const Problem& problem);

//! @brief Samples the copy engine's copy and plain kernels, on each device by itself, where devices add up; then the links
//!        between the devices, all at once.
class GpuCeilings : public Ceilings {
 public:
  static constexpr std::size_t kPlaceBytes = std::size_t{512} << 20;
  static constexpr int kPlaces = 6;                                       //!< as many as such a kernel reads and writes
  static constexpr std::size_t kLinkPlaceBytes = std::size_t{256} << 20;  //!< that one device moves to one other
  [[nodiscard]] static constexpr std::size_t bytes_on_a_device(int devices) {
    return kPlaces * kPlaceBytes + (devices > 1 ? static_cast<std::size_t>(devices + 1) * kLinkPlaceBytes : 0);
  }
  explicit GpuCeilings(int devices);
  void measure();

 private:
  struct Yardsticks;
  std::shared_ptr<Yardsticks> yardsticks_;  // kept, since what memory moves depends on where it lies
};

//! @brief Verifies, times, verifies again.
[[nodiscard]] Outcome run_gpu(const Problem& problem, const Progress& progress);

}  // namespace ep_bench
