// SPDX-License-Identifier: MIT
//! @file Handles of the runtime, owned, and errors as exceptions. Only for files that the GPU's compiler reads.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#include "mori_ep/exec/exec.hpp"

namespace ep_bench::gpu {

using Exec = mori_ep::exec::Default;
using Stream = mori_ep::exec::gpu::RtStream;

#if defined(__HIP__)
using Properties = hipDeviceProp_t;
#else
using Properties = cudaDeviceProp;
#endif

inline void require(mori_ep::exec::gpu::RtError error, const char* what) {
  if (error != mori_ep::exec::gpu::kRtSuccess)
    throw std::runtime_error(std::string(what) + ": " + MORI_EP_RT(GetErrorString)(error));
}
inline void require(const mori_ep::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}
inline void set_device(int device) { require(MORI_EP_RT(SetDevice)(device), "choosing a device"); }
[[nodiscard]] inline Properties properties_of(int device) {
  Properties p;
  require(MORI_EP_RT(GetDeviceProperties)(&p, device), "asking for a device's properties");
  return p;
}

//! @brief An event of the current device.
class Event {
 public:
  explicit Event(bool timed) {
    require(
        MORI_EP_RT(EventCreateWithFlags)(&handle_, timed ? MORI_EP_RT(EventDefault) : MORI_EP_RT(EventDisableTiming)),
        "creating an event");
  }
  Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&&) = delete;
  ~Event() {
    if (handle_ != nullptr) (void)MORI_EP_RT(EventDestroy)(handle_);
  }
  void record(Stream stream) const { require(MORI_EP_RT(EventRecord)(handle_, stream), "recording an event"); }
  void hold_back(Stream stream) const {
    require(MORI_EP_RT(StreamWaitEvent)(stream, handle_, 0), "waiting for an event");
  }
  [[nodiscard]] double us_since(const Event& begin) const {
    float ms = 0;
    require(MORI_EP_RT(EventElapsedTime)(&ms, begin.handle_, handle_), "reading events");
    return 1e3 * static_cast<double>(ms);
  }

 private:
  mori_ep::exec::gpu::RtEvent handle_ = nullptr;
};

//! @brief `count` zeroed elements on the device that was current.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(std::size_t count) : count_(count) {
    if (count == 0) return;
    memory_ = Exec::allocate(bytes());
    if (memory_ == nullptr) {
      (void)MORI_EP_RT(GetLastError)();
      throw std::runtime_error("no device memory for " + std::to_string(bytes()) + " bytes");
    }
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceBuffer() {
    if (memory_ != nullptr) Exec::release(memory_, bytes());
  }
  [[nodiscard]] T* data() const noexcept { return reinterpret_cast<T*>(memory_); }
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return count_ * sizeof(T); }

 private:
  std::byte* memory_ = nullptr;
  std::size_t count_ = 0;
};

//! @brief Host thread, either direction; nothing when there is nothing. Streams see the end of it, as of `poison`,
//!        after a `finish`.
inline void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0) require(MORI_EP_RT(Memcpy)(to, from, bytes, MORI_EP_RT(MemcpyDefault)), "copying");
}
//! @brief All bits set: NaN in every element type.
inline void poison(void* memory, std::size_t bytes) {
  if (bytes > 0) require(MORI_EP_RT(Memset)(memory, 0xff, bytes), "poisoning");
}
//! @brief Waits for everything on the current device.
inline void finish() { require(MORI_EP_RT(DeviceSynchronize)(), "waiting for a device"); }

}  // namespace ep_bench::gpu
