// SPDX-License-Identifier: MIT
//! @file Memory of a GPU that several processes map: on NVIDIA an allocation that is a descriptor (virtual memory
//!       management), on AMD one with an IPC handle; and that a network's card reads and writes: a dmabuf. Calls act on
//!       the calling thread's device.
#pragma once

#include "mori_ep/exec/gpu/runtime.hpp"

#if defined(MORI_EP_GPU)

#include <cstddef>
#include <cstdint>

#if defined(__HIP__)
#include <dlfcn.h>
#endif
#include <unistd.h>

#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/exec/memory_file.hpp"

#if !defined(__HIP__)
#include <cuda.h>
#endif

namespace mori_ep::exec::gpu::shared_memory {

#if defined(__HIP__)

// hipMemCreate gives memory that is coherent at kernel boundaries only (malloc_shared), so what is shared is
// malloc_shared's, by its IPC handle, which travels as the content of a file. The kernel driver counts who maps an
// allocation: it lasts as long as the last of them, whoever frees first.

[[nodiscard]] inline bool supported() noexcept { return true; }

//! @brief Memory of no content; nullptr when there is none.
[[nodiscard]] inline ShareableMemory create(std::size_t bytes) noexcept {
  void* memory = nullptr;
  if (malloc_shared(&memory, bytes) != kRtSuccess) return {};
  hipIpcMemHandle_t handle{};
  if (hipIpcGetMemHandle(&handle, memory) == kRtSuccess) {
    int const fd = ::memfd_create("mori_ep", MFD_CLOEXEC);
    if (fd >= 0 && ::pwrite(fd, &handle, sizeof(handle), 0) == sizeof(handle))
      return {static_cast<std::byte*>(memory), fd};
    if (fd >= 0) ::close(fd);
  }
  (void)hipFree(memory);
  return {};
}
inline void destroy(std::byte* memory, std::size_t) noexcept { (void)hipFree(memory); }

[[nodiscard]] inline std::byte* map(int fd, std::size_t) noexcept {
  hipIpcMemHandle_t handle{};
  void* memory = nullptr;
  if (::pread(fd, &handle, sizeof(handle), 0) != sizeof(handle) ||
      hipIpcOpenMemHandle(&memory, handle, hipIpcMemLazyEnablePeerAccess) != kRtSuccess)
    return nullptr;
  return static_cast<std::byte*>(memory);
}
inline void unmap(std::byte* memory, std::size_t) noexcept { (void)hipIpcCloseMemHandle(memory); }

//! @brief By the call that ROCr has for it, found at run time: HIP has none of its own before ROCm 7.
[[nodiscard]] inline Dmabuf dmabuf(const void* memory, std::size_t bytes) noexcept {
  using Export = int (*)(const void*, std::size_t, int*, std::uint64_t*);
  auto const get = reinterpret_cast<Export>(::dlsym(RTLD_DEFAULT, "hsa_amd_portable_export_dmabuf"));
  Dmabuf found;
  return get != nullptr && get(memory, bytes, &found.fd, &found.offset) == 0 ? found : Dmabuf{};
}

#else

// An IPC handle would not do: a peer that frees first would leave the others' mappings undefined (the runtime's manual,
// cudaIpcOpenMemHandle), and ranks end in any order. An allocation of cuMemCreate lasts as long as its last mapping.

//! @brief The driver's calls, found through the runtime, so that nothing links to the driver's library.
class Driver {
 public:
  //! @brief nullptr where the driver lacks one of them.
  [[nodiscard]] static const Driver* get() noexcept {
    static const Driver driver;
    return driver.complete_ ? &driver : nullptr;
  }

  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) unreserve = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemExportToShareableHandle) to_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) from_handle = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetHandleForAddressRange) range_handle = nullptr;  // nullptr before 11.7

 private:
  Driver() noexcept
      : complete_(find("cuMemGetAllocationGranularity", granularity) && find("cuMemCreate", create) &&
                  find("cuMemRelease", release) && find("cuMemAddressReserve", reserve) &&
                  find("cuMemAddressFree", unreserve) && find("cuMemMap", map) && find("cuMemUnmap", unmap) &&
                  find("cuMemSetAccess", set_access) && find("cuMemExportToShareableHandle", to_handle) &&
                  find("cuMemImportFromShareableHandle", from_handle) && find("cuDeviceGetAttribute", attribute)) {
    if (!find("cuMemGetHandleForAddressRange", range_handle)) range_handle = nullptr;
  }

  template <class Function>
  static bool find(const char* name, Function& into) noexcept {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
    cudaError_t const error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
    cudaError_t const error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    into = reinterpret_cast<Function>(found);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess && found != nullptr;
  }

  bool complete_;
};

[[nodiscard]] inline CUmemAllocationProp on_device(const Driver& driver, int ordinal) noexcept {
  CUmemAllocationProp prop{};
  int by_cards = 0;  // may network cards read and write such an allocation?
  if (driver.attribute(&by_cards, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, ordinal) == CUDA_SUCCESS)
    prop.allocFlags.gpuDirectRDMACapable = by_cards != 0 ? 1 : 0;
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
  return prop;
}

//! @brief `bytes` in whole pages of the visible device that has the largest: devices of one kind have pages of one size.
[[nodiscard]] inline std::size_t whole_pages(const Driver& driver, std::size_t bytes) noexcept {
  int devices = 0;
  (void)cudaGetDeviceCount(&devices);
  std::size_t page = 1;
  for (int ordinal = 0; ordinal < devices; ++ordinal) {
    CUmemAllocationProp const prop = on_device(driver, ordinal);
    std::size_t granularity = 0;
    if (driver.granularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS && granularity > page)
      page = granularity;
  }
  return (bytes + page - 1) / page * page;
}

//! @brief Of the whole pages in which the memory lies, as the driver wants it: a device's allocations are made of pages.
[[nodiscard]] inline Dmabuf dmabuf(const void* memory, std::size_t bytes) noexcept {
  const Driver* const driver = Driver::get();
  int ordinal = 0, has = 0;
  if (driver == nullptr || driver->range_handle == nullptr || cudaGetDevice(&ordinal) != cudaSuccess ||
      driver->attribute(&has, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, ordinal) != CUDA_SUCCESS || has == 0)
    return {};
  auto const page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)), at = reinterpret_cast<std::uintptr_t>(memory);
  std::uintptr_t const begin = at / page * page, end = (at + bytes + page - 1) / page * page;
  int fd = -1;
  CUresult const got =
      driver->range_handle(&fd, static_cast<CUdeviceptr>(begin), end - begin, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  return got == CUDA_SUCCESS ? Dmabuf{fd, at - begin} : Dmabuf{};
}

[[nodiscard]] inline bool supported() noexcept {
  (void)cudaFree(nullptr);  // starts the runtime, and with it the driver
  const Driver* const driver = Driver::get();
  if (driver == nullptr) return false;
  int ordinal = 0, virtual_memory = 0, descriptors = 0;
  return cudaGetDevice(&ordinal) == cudaSuccess &&
         driver->attribute(&virtual_memory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, ordinal) ==
             CUDA_SUCCESS &&
         driver->attribute(&descriptors, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ordinal) ==
             CUDA_SUCCESS &&
         virtual_memory != 0 && descriptors != 0;
}

inline void unmap(std::byte* memory, std::size_t bytes) noexcept {
  const Driver* const driver = Driver::get();
  std::size_t const size = whole_pages(*driver, bytes);
  auto const at = reinterpret_cast<CUdeviceptr>(memory);
  (void)driver->unmap(at, size);
  (void)driver->unreserve(at, size);
}
inline void destroy(std::byte* memory, std::size_t bytes) noexcept { unmap(memory, bytes); }

//! @brief The allocation at an address of this process, within reach of this device and of all that can; its own
//!        reference to the allocation is given up, the mapping holds one. nullptr when it cannot.
[[nodiscard]] inline std::byte* map(const Driver& driver, CUmemGenericAllocationHandle allocation,
                                    std::size_t size) noexcept {
  CUdeviceptr at = 0;
  bool mapped = false, reached = false;
  if (driver.reserve(&at, size, 0, 0, 0) == CUDA_SUCCESS) {
    mapped = driver.map(at, size, 0, allocation, 0) == CUDA_SUCCESS;
    int mine = 0, devices = 0;
    (void)cudaGetDevice(&mine);
    (void)cudaGetDeviceCount(&devices);
    for (int ordinal = 0; mapped && ordinal < devices; ++ordinal) {
      CUmemAccessDesc access{};
      access.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal};
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      bool const granted = driver.set_access(at, size, &access, 1) == CUDA_SUCCESS;
      reached = reached || (granted && ordinal == mine);
    }
    if (mapped && !reached) (void)driver.unmap(at, size);
    if (!reached) (void)driver.unreserve(at, size);
  }
  (void)driver.release(allocation);
  return reached ? reinterpret_cast<std::byte*>(at) : nullptr;
}

//! @brief Memory of no content; nullptr when there is none.
[[nodiscard]] inline ShareableMemory create(std::size_t bytes) noexcept {
  if (!supported()) return {};
  const Driver& driver = *Driver::get();
  int ordinal = 0, fd = -1;
  (void)cudaGetDevice(&ordinal);
  CUmemAllocationProp const prop = on_device(driver, ordinal);
  std::size_t const size = whole_pages(driver, bytes);
  CUmemGenericAllocationHandle allocation{};
  if (driver.create(&allocation, size, &prop, 0) != CUDA_SUCCESS) return {};
  if (driver.to_handle(&fd, allocation, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != CUDA_SUCCESS) {
    (void)driver.release(allocation);
    return {};
  }
  std::byte* const memory = map(driver, allocation, size);
  if (memory != nullptr) return {memory, fd};
  ::close(fd);
  return {};
}

[[nodiscard]] inline std::byte* map(int fd, std::size_t bytes) noexcept {
  if (!supported()) return nullptr;
  const Driver& driver = *Driver::get();
  CUmemGenericAllocationHandle allocation{};
  auto* const handle = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd));
  if (driver.from_handle(&allocation, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS) return nullptr;
  return map(driver, allocation, whole_pages(driver, bytes));
}

#endif

//! @brief Pins a mapping of the host's memory, so that every device reaches it at the host's address; null stays null,
//!        and null is the answer where that cannot be.
[[nodiscard]] inline std::byte* pin(std::byte* memory, std::size_t bytes) noexcept {
  if (memory == nullptr) return nullptr;
  void* seen_by_device = nullptr;
  if (MORI_EP_RT(HostRegister)(memory, bytes, MORI_EP_RT(HostRegisterMapped) | MORI_EP_RT(HostRegisterPortable)) ==
      kRtSuccess) {
    if (MORI_EP_RT(HostGetDevicePointer)(&seen_by_device, memory, 0) == kRtSuccess && seen_by_device == memory)
      return memory;
    (void)MORI_EP_RT(HostUnregister)(memory);
  }
  memory_file::unmap(memory, bytes);
  return nullptr;
}
inline void unpin(std::byte* memory, std::size_t bytes) noexcept {
  (void)MORI_EP_RT(HostUnregister)(memory);
  memory_file::unmap(memory, bytes);
}

}  // namespace mori_ep::exec::gpu::shared_memory

#endif
