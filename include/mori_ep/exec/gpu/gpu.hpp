// SPDX-License-Identifier: MIT
//! @file A GPU as an exec policy: streams, launches that fit, memory and notice boards, for CUDA and HIP alike.
#pragma once

#include "mori_ep/exec/gpu/runtime.hpp"

#if defined(MORI_EP_GPU)

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>

#include <unistd.h>

#include "mori_ep/error.hpp"
#include "mori_ep/exec/gpu/context.hpp"
#include "mori_ep/exec/gpu/shared_memory.hpp"

namespace mori_ep::exec::gpu {

inline constexpr int kMaxThreads = 512;  //!< of a block
inline constexpr int kBlocksPerUnit =
    2;  //!< that registers must allow per multiprocessor: 64 registers a thread on Hopper, 128 on gfx9

template <class Kernel>
inline constexpr bool kReducesRows = false;
template <class Kernel>
requires requires { Kernel::kReducesRows; }
inline constexpr bool kReducesRows<Kernel> = Kernel::kReducesRows;

//! @brief What the row sums of a kernel want beside its own scratch.
template <class Kernel>
MORI_EP_HD constexpr std::size_t sum_scratch(int warps) {
  return kReducesRows<Kernel> ? Context<true>::sum_scratch(warps) : 0;
}

template <class Kernel>
__global__ void __launch_bounds__(kMaxThreads, Target::least_resident(kMaxThreads, kBlocksPerUnit))
    entry(MORI_EP_GRID_CONSTANT const Kernel kernel) {
  extern __shared__ __attribute__((aligned(16))) std::byte scratch[];
  Context<kReducesRows<Kernel>> context(scratch + sum_scratch<Kernel>(static_cast<int>(blockDim.x) / Target::lanes),
                                        scratch);
  Target::operand(kernel)(context);
}

//! @brief The kernel's address, one for the whole program: nvcc may give every translation unit an `entry` of its own
//!        (-static-global-template-stub, on from CUDA 13.0), each with attributes of its own. Never inlined, so that
//!        the linker keeps one of these functions.
template <class Kernel>
[[gnu::noinline]] const void* entry_of() noexcept {
  auto address = reinterpret_cast<std::uintptr_t>(&entry<Kernel>);
  asm volatile("" : "+r"(address));  // and callers cannot foresee what it returns
  return reinterpret_cast<const void*>(address);
}

[[nodiscard]] inline Status status_of(RtError error, const char* what) noexcept {
  if (error == kRtSuccess) return {};
  return Error{.code = Errc::device_error,
               .field = what,
               .value = static_cast<std::int64_t>(error),
               .hint = MORI_EP_RT(GetErrorString)(error)};
}

//! @brief Does nothing: a stream's first launch.
struct FirstLaunch {
  std::uint32_t reserved = 0;  // a kernel's arguments are whole words (target_amd.hpp)
  template <class Ctx>
  MORI_EP_HD void operator()(Ctx&) const {}
};

//! @brief What exec::Cuda and exec::Hip share. Calls act on the calling thread's current device.
struct Gpu {
  static constexpr bool kFreeWaits = true;  // freeing device memory waits for the device's work

  //! @brief An owned stream, for callers that have none; engines pass their own handle.
  //!
  //! CUDA gives a stream its hardware queue at its first launch, and gives two streams one queue when threads make
  //! these launches at the same moment (bench/results/notes.md); then what waits in one stream holds back the other. So
  //! the first launch is here, one thread at a time.
  class Stream {
   public:
    Stream() noexcept {
      std::lock_guard const lock(one_at_a_time());
      OutsideCapture const mode;
      if (MORI_EP_RT(StreamCreateWithFlags)(&handle_, MORI_EP_RT(StreamNonBlocking)) == kRtSuccess &&
          launch({.blocks = 1, .warps = 1}, FirstLaunch{}, handle_).ok())
        (void)MORI_EP_RT(StreamSynchronize)(handle_);
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    ~Stream() { (void)MORI_EP_RT(StreamDestroy)(handle_); }
    [[nodiscard]] RtStream handle() const noexcept { return handle_; }
    //! @brief Waits for the stream. An error is the runtime's: of a kernel before, too.
    [[nodiscard]] Status synchronize() const noexcept {
      return status_of(MORI_EP_RT(StreamSynchronize)(handle_), "stream synchronize");
    }

   private:
    RtStream handle_ = nullptr;
  };
  class StreamRef {
   public:
    StreamRef(RtStream handle) noexcept : handle_(handle) {}                // NOLINT: a handle is a reference
    StreamRef(const Stream& stream) noexcept : handle_(stream.handle()) {}  // NOLINT: as above
    [[nodiscard]] RtStream get() const noexcept { return handle_; }

   private:
    RtStream handle_;
  };

  template <class Kernel>
  static Status launch(const LaunchGeometry& geometry, const Kernel& kernel, StreamRef stream) noexcept {
    std::size_t const scratch = geometry.shared_bytes + sum_scratch<Kernel>(geometry.warps);
    if (Status s = prepare<Kernel>(); !s.ok()) return s;
    void* arguments[] = {const_cast<Kernel*>(&kernel)};
    RtError const error = MORI_EP_RT(LaunchKernel)(entry_of<Kernel>(), dim3(static_cast<unsigned>(geometry.blocks)),
                                                   dim3(static_cast<unsigned>(geometry.warps * device_lanes())),
                                                   arguments, scratch, stream.get());
    if (error != kRtSuccess) (void)MORI_EP_RT(GetLastError)();  // told here: no later call shall report it
    return status_of(error, "kernel launch");
  }
  //! @brief Lets the kernel have all the scratch that a block can have on the current device, and, on NVIDIA, gives all
  //! kernels one division of a multiprocessor's memory into cache and scratch: kernels of different divisions do not
  //! run side by side, and one may be waiting for the other. Asks the driver once per device: before any launch for
  //! the operator's own kernels, at the first launch for other kernels.
  template <class Kernel>
  static Status prepare() noexcept {
    static std::atomic<std::uint64_t> prepared{0};
    int ordinal = 0, most = 0;
    if (Status s = status_of(MORI_EP_RT(GetDevice)(&ordinal), "current device"); !s.ok()) return s;
    std::uint64_t const bit = std::uint64_t{1} << (ordinal % 64);
    if ((prepared.load(std::memory_order_relaxed) & bit) != 0) return {};
    (void)MORI_EP_RT(DeviceGetAttribute)(&most, MORI_EP_RT_ATTRIBUTE_SCRATCH, ordinal);
    RtError error =
        MORI_EP_RT(FuncSetAttribute)(entry_of<Kernel>(), MORI_EP_RT(FuncAttributeMaxDynamicSharedMemorySize), most);
#if !defined(__HIP__)
    if (error == kRtSuccess)
      error = cudaFuncSetAttribute(entry_of<Kernel>(), cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared);
#endif
    if (error == kRtSuccess) prepared.fetch_or(bit, std::memory_order_relaxed);
    return status_of(error, "scratch of a block");
  }

  static Status synchronize(StreamRef stream) noexcept {
    return status_of(MORI_EP_RT(StreamSynchronize)(stream.get()), "stream synchronize");
  }

  //! @brief How many devices this process can use; 0 also when the driver is missing or too old for the runtime.
  static int device_count() noexcept {
    int count = 0;
    return MORI_EP_RT(GetDeviceCount)(&count) == kRtSuccess ? count : 0;
  }
  //! @brief Makes `ordinal` the calling thread's device. A rank that is a thread calls it before all else: threads
  //!        begin on device 0.
  static Status use_device(int ordinal) noexcept {
    RtError const error = MORI_EP_RT(SetDevice)(ordinal);
    if (error == kRtSuccess) return {};
    (void)MORI_EP_RT(GetLastError)();
    return Error{.code = Errc::device_error,
                 .field = "device ordinal",
                 .value = ordinal,
                 .limit = device_count() - 1,
                 .hint = MORI_EP_RT(GetErrorString)(error)};
  }
  //! @brief Waits for all work of the calling thread's device, also while a capture is going on, which the plain wait
  //!        would void.
  static void drain() noexcept {
    OutsideCapture const mode;
    void* memory = nullptr;
    if (MORI_EP_RT(Malloc)(&memory, 1) == kRtSuccess) (void)MORI_EP_RT(Free)(memory);
  }
  //! @brief Does a stream capture forbid the calling thread to allocate? Asking voids that capture: a runtime tells
  //!        only by refusing.
  static bool capturing() noexcept {
    RtError const error = MORI_EP_RT(Free)(nullptr);
    (void)MORI_EP_RT(GetLastError)();
    return error == MORI_EP_RT(ErrorStreamCaptureUnsupported) || error == MORI_EP_RT(ErrorStreamCaptureInvalidated);
  }
  //! @brief The calling thread's device, and the devices whose memory it can reach, itself included: a bit per ordinal.
  static int ordinal() noexcept {
    int mine = 0;
    (void)MORI_EP_RT(GetDevice)(&mine);
    return mine;
  }
  static std::uint64_t reachable() noexcept {
    int const mine = ordinal(), count = device_count();
    std::uint64_t bits = 0;
    for (int peer = 0; peer < count && peer < 64; ++peer) {
      int reaches = peer == mine ? 1 : 0;
      if (peer != mine && MORI_EP_RT(DeviceCanAccessPeer)(&reaches, mine, peer) != kRtSuccess) reaches = 0;
      bits |= std::uint64_t{reaches != 0} << peer;
    }
    return bits;
  }
  //! @brief The device's identity: equal for two ranks on one device, in this process or another.
  static std::uint64_t device() noexcept {
    int ordinal = 0;
    if (MORI_EP_RT(GetDevice)(&ordinal) != kRtSuccess) return 1;
    char bus[32] = {};
    if (MORI_EP_RT(DeviceGetPCIBusId)(bus, sizeof(bus), ordinal) != kRtSuccess)
      return static_cast<std::uint64_t>(ordinal) + 1;
    std::uint64_t hash = 0xcbf29ce484222325ull;
    for (char c : bus) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3ull;
    return hash | 1;
  }
  //! @brief How many blocks of this kernel the device keeps resident, for each number of warps a block may have.
  template <class Kernel, class SharedBytes>
  static Residency residency(SharedBytes&& shared_bytes) noexcept {
    int const lanes = device_lanes();
    Residency r{.max_warps = kMaxThreads / lanes};
    int ordinal = 0, units = 0;
    (void)MORI_EP_RT(GetDevice)(&ordinal);
    (void)MORI_EP_RT(DeviceGetAttribute)(&units, MORI_EP_RT_ATTRIBUTE_UNITS, ordinal);
    if (!prepare<Kernel>().ok()) (void)MORI_EP_RT(GetLastError)();
    for (int warps = 1; warps <= r.max_warps; ++warps) {
      int per_unit = 0;
      (void)MORI_EP_RT(OccupancyMaxActiveBlocksPerMultiprocessor)(&per_unit, entry_of<Kernel>(), warps * lanes,
                                                                  shared_bytes(warps) + sum_scratch<Kernel>(warps));
      r.blocks[warps] = per_unit * units;
    }
    return r;
  }
  //! @brief A rank alone leaves most of the device to others; ranks that share one divide it.
  static int default_blocks(int resident, int ranks_on_host) noexcept {
    (void)ranks_on_host;
    return resident < kAloneBlocks ? resident : kAloneBlocks;
  }
  static int default_warps() noexcept { return kMaxThreads / device_lanes(); }

  static std::byte* allocate(std::size_t bytes) noexcept {
    void* memory = nullptr;
    if (malloc_shared(&memory, bytes) == kRtSuccess) {
      if (zero(memory, bytes)) return static_cast<std::byte*>(memory);
      release(static_cast<std::byte*>(memory), bytes);
    }
    (void)MORI_EP_RT(GetLastError)();  // told by the nullptr: no later launch shall report it
    return nullptr;
  }
  static void release(std::byte* memory, std::size_t) noexcept {
    OutsideCapture const mode;
    (void)MORI_EP_RT(Free)(memory);
  }
  //! @brief Pinned host memory at one address for the host and every device.
  static std::byte* allocate_board(std::size_t bytes) noexcept {
    void* memory = nullptr;
    if (malloc_host(&memory, bytes) != kRtSuccess) {
      (void)MORI_EP_RT(GetLastError)();
      return nullptr;
    }
    std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  }
  static void release_board(std::byte* memory, std::size_t) noexcept {
    OutsideCapture const mode;
    (void)free_host(memory);
  }
  static bool host_reaches(const void* memory) noexcept {
    RtPointerAttributes of{};
    bool const known = MORI_EP_RT(PointerGetAttributes)(&of, memory) == kRtSuccess;
    if (!known) (void)MORI_EP_RT(GetLastError)();
    return known && !is_device_memory(of);
  }
  static Dmabuf dmabuf(const void* memory, std::size_t bytes) noexcept {
    OutsideCapture const mode;
    Dmabuf const found = shared_memory::dmabuf(memory, bytes);
    (void)MORI_EP_RT(GetLastError)();
    return found;
  }
  static bool can_share() noexcept {
    OutsideCapture const mode;
    bool const can = shared_memory::supported();
    (void)MORI_EP_RT(GetLastError)();
    return can;
  }
  static ShareableMemory allocate_shareable(std::size_t bytes) noexcept {
    ShareableMemory shared = capturing() ? ShareableMemory{} : shared_memory::create(bytes);
    if (shared.memory != nullptr && !zero(shared.memory, bytes)) {
      ::close(shared.fd);
      release_shareable(shared.memory, bytes);
      shared = {};
    }
    (void)MORI_EP_RT(GetLastError)();
    return shared;
  }
  //! @brief Waits for the device's work, as release() does.
  static void release_shareable(std::byte* memory, std::size_t bytes) noexcept {
    drain();
    OutsideCapture const mode;
    shared_memory::destroy(memory, bytes);
  }
  static std::byte* map_shared(int fd, std::size_t bytes) noexcept {
    OutsideCapture const mode;
    std::byte* const memory = shared_memory::map(fd, bytes);
    (void)MORI_EP_RT(GetLastError)();
    return memory;
  }
  static void unmap_shared(std::byte* memory, std::size_t bytes) noexcept {
    drain();
    OutsideCapture const mode;
    shared_memory::unmap(memory, bytes);
  }
  static ShareableMemory allocate_shareable_board(std::size_t bytes) noexcept {
    ShareableMemory shared = memory_file::create(bytes);
    if (shared.memory == nullptr) return {};
    shared.memory = pin(shared.memory, bytes);
    if (shared.memory != nullptr) return shared;
    ::close(shared.fd);
    return {};
  }
  static std::byte* map_shared_board(int fd, std::size_t bytes) noexcept {
    return pin(memory_file::map(fd, bytes), bytes);
  }
  static void release_shareable_board(std::byte* memory, std::size_t bytes) noexcept {
    unmap_shared_board(memory, bytes);
  }
  static void unmap_shared_board(std::byte* memory, std::size_t bytes) noexcept {
    drain();
    OutsideCapture const mode;
    shared_memory::unpin(memory, bytes);
  }

  //! @brief Copies at once, in either direction. It may wait for copies that other streams have queued, and so for the
  //!        kernels before these.
  static Status copy(void* dst, const void* src, std::size_t bytes) noexcept {
    return at_once("copy", [&](RtStream stream) {
      return MORI_EP_RT(MemcpyAsync)(dst, src, bytes, MORI_EP_RT(MemcpyDefault), stream);
    });
  }

  //! @brief Lets this device reach the memory of every other device of the machine that it can reach. Asks for each
  //!        once, since memory checkers report it as an error to ask for what is there already: so a process that takes
  //!        access back, or resets a device, gives it again before it creates operators.
  static Status share_memory() noexcept {
    static std::mutex mutex;
    static std::uint64_t reached[64] = {};  // by device
    std::lock_guard const lock(mutex);
    int const mine = ordinal() % 64;
    std::uint64_t const others = reachable() & ~(std::uint64_t{1} << mine);
    for (int peer = 0; peer < 64; ++peer) {
      std::uint64_t const bit = std::uint64_t{1} << peer;
      if ((others & ~reached[mine] & bit) == 0) continue;
      RtError const error = MORI_EP_RT(DeviceEnablePeerAccess)(peer, 0);
      if (error != kRtSuccess && error != MORI_EP_RT(ErrorPeerAccessAlreadyEnabled))
        return status_of(error, "peer access");
      (void)MORI_EP_RT(GetLastError)();
      reached[mine] |= bit;
    }
    return {};
  }

 private:
  static constexpr int kAloneBlocks = 64;
  static bool zero(void* memory, std::size_t bytes) noexcept {
    return at_once("zeroes", [&](RtStream stream) { return MORI_EP_RT(MemsetAsync)(memory, 0, bytes, stream); }).ok();
  }
  static std::byte* pin(std::byte* memory, std::size_t bytes) noexcept {
    std::byte* const pinned = shared_memory::pin(memory, bytes);
    (void)MORI_EP_RT(GetLastError)();
    return pinned;
  }
  static std::mutex& one_at_a_time() noexcept {
    static std::mutex mutex;
    return mutex;
  }
  //! Enqueues and waits, on the one stream that a device has for this: not the null stream, which may wait for callers'
  //! streams, whose kernels wait for peers, nor one for each call, since streams that outnumber the hardware queues
  //! (32) take them from idle ones, whose next launch is then a first one (Stream).
  template <class Enqueue>
  static Status at_once(const char* what, Enqueue&& enqueue) noexcept {
    static RtStream streams[64] = {};  // never destroyed: the runtime is gone by then
    std::lock_guard const lock(one_at_a_time());
    OutsideCapture const mode;
    RtStream& stream = streams[ordinal() % 64];
    RtError error =
        stream != nullptr ? kRtSuccess : MORI_EP_RT(StreamCreateWithFlags)(&stream, MORI_EP_RT(StreamNonBlocking));
    if (error == kRtSuccess) error = enqueue(stream);
    if (error == kRtSuccess) error = MORI_EP_RT(StreamSynchronize)(stream);
    return status_of(error, what);
  }
  //! Freeing is no part of any graph: a capture that is going on neither forbids it nor is voided by it.
  class OutsideCapture {
   public:
    OutsideCapture() noexcept { (void)MORI_EP_RT(ThreadExchangeStreamCaptureMode)(&mode_); }
    OutsideCapture(const OutsideCapture&) = delete;
    OutsideCapture& operator=(const OutsideCapture&) = delete;
    ~OutsideCapture() { (void)MORI_EP_RT(ThreadExchangeStreamCaptureMode)(&mode_); }

   private:
    MORI_EP_RT(StreamCaptureMode) mode_ = MORI_EP_RT(StreamCaptureModeRelaxed);
  };
};

}  // namespace mori_ep::exec::gpu

#endif
