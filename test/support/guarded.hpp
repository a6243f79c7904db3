// SPDX-License-Identifier: MIT
//! @file Memory with canaries round it and in the gaps between rows, filled with NaN bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include <unistd.h>

#include "mori_ep/comm/symmetric_heap.hpp"
#include "support/machine.hpp"
#include "support/random.hpp"

#if defined(__SANITIZE_ADDRESS__)
#define MORI_EP_TEST_POISON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MORI_EP_TEST_POISON 1
#endif
#endif
#if defined(MORI_EP_TEST_POISON)
#include <sanitizer/asan_interface.h>
#endif

namespace mori_ep::test {

//! @brief `rows` rows of `width` bytes, `stride` apart, at a multiple of 256 bytes. Ends with the last row's last byte.
class Guarded {
 public:
  static constexpr std::size_t kGuard = 256;
  static constexpr auto kFill = std::byte{0xff}, kCanary = std::byte{0xc5};

  Guarded() = default;
  Guarded(std::size_t rows, std::size_t width, std::size_t stride)
      : rows_(rows), width_(width), stride_(stride), bytes_(rows == 0 ? 0 : (rows - 1) * stride + width) {
    data_ = take_memory(bytes_ + 2 * kGuard) + kGuard;
    std::fill(data_ - kGuard, data_, kCanary);
    std::fill(data_, data_ + bytes_, kFill);
    std::fill(data_ + bytes_, data_ + bytes_ + kGuard, kCanary);
    poison();
  }
  explicit Guarded(std::size_t bytes) : Guarded(1, bytes, bytes) {}
  Guarded(Guarded&& other) noexcept { *this = std::move(other); }
  Guarded& operator=(Guarded&& other) noexcept {
    give_back();
    data_ = std::exchange(other.data_, nullptr);
    rows_ = other.rows_, width_ = other.width_, stride_ = other.stride_, bytes_ = other.bytes_;
    return *this;
  }
  ~Guarded() { give_back(); }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::byte* row(std::size_t i) const noexcept { return data_ + i * stride_; }
  [[nodiscard]] std::size_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  //! @brief Copies packed rows in.
  void put(const void* packed) const noexcept {
    for (std::size_t i = 0; width_ != 0 && i < rows_; ++i)
      std::memcpy(row(i), static_cast<const std::byte*>(packed) + i * width_, width_);
  }
  //! @brief Do the rows still hold these bytes?
  [[nodiscard]] bool holds(const void* packed) const noexcept {
    for (std::size_t i = 0; width_ != 0 && i < rows_; ++i)
      if (std::memcmp(row(i), static_cast<const std::byte*>(packed) + i * width_, width_) != 0) return false;
    return true;
  }
  //! @brief Nothing before, after or between the rows was written.
  [[nodiscard]] bool intact() const noexcept {
    if (data_ == nullptr) return true;
    unpoison();
    bool ok = all(data_ - kGuard, kGuard, kCanary) && all(data_ + bytes_, kGuard, kCanary);
    for (std::size_t i = 0; i + 1 < rows_; ++i) ok = ok && all(row(i) + width_, stride_ - width_, kFill);
    poison();
    return ok;
  }
  //! @brief Not a byte was written.
  [[nodiscard]] bool untouched() const noexcept { return data_ == nullptr || (intact() && all(data_, bytes_, kFill)); }

  static bool all(const std::byte* from, std::size_t bytes, std::byte value) noexcept {
    return std::all_of(from, from + bytes, [value](std::byte b) { return b == value; });
  }

 private:
  void give_back() noexcept {
    unpoison();
    if (data_ != nullptr) give_memory(data_ - kGuard, bytes_ + 2 * kGuard);
  }
  void poison() const noexcept {
#if defined(MORI_EP_TEST_POISON)
    ASAN_POISON_MEMORY_REGION(data_ - kGuard, kGuard);
    ASAN_POISON_MEMORY_REGION(data_ + bytes_, kGuard);
#endif
  }
  void unpoison() const noexcept {
#if defined(MORI_EP_TEST_POISON)
    if (data_ != nullptr) ASAN_UNPOISON_MEMORY_REGION(data_ - kGuard, bytes_ + 2 * kGuard);
#endif
  }

  std::byte* data_ = nullptr;
  std::size_t rows_ = 0, width_ = 0, stride_ = 0, bytes_ = 0;
};

//! @brief Every operator of a plan works in memory that the test brings and that holds nothing yet, so that a checker
//!        sees what kernels read before it was written.
inline bool raw_arenas() {
  static bool const raw = env_number("MORI_EP_TEST_RAW_ARENAS", 0) != 0;
  return raw;
}

//! @brief An arena for an operator, with canaries at both ends: Guarded on the host, else memory that is checked by
//!        copying.
template <class Exec>
class GuardedArena {
 public:
  GuardedArena(std::size_t bytes, comm::Place place)
      : base_(place == comm::Place::device ? allocate_raw<Exec>(bytes + 2 * Guarded::kGuard)
                                           : Exec::allocate_board(bytes + 2 * Guarded::kGuard)),
        bytes_(bytes),
        place_(place) {
    std::vector<std::byte> const guard(Guarded::kGuard, Guarded::kCanary);
    copy_now<Exec>(base_, guard.data(), guard.size());
    if (!raw_arenas()) copy_now<Exec>(data(), std::vector<std::byte>(bytes, Guarded::kFill).data(), bytes);
    copy_now<Exec>(data() + bytes, guard.data(), guard.size());
  }
  GuardedArena(GuardedArena&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(other.bytes_), place_(other.place_) {}
  GuardedArena& operator=(GuardedArena&&) = delete;
  ~GuardedArena() {
    if (base_ == nullptr) return;
    auto const release = place_ == comm::Place::device ? Exec::release : Exec::release_board;
    release(base_, bytes_ + 2 * Guarded::kGuard);
  }
  [[nodiscard]] std::byte* data() const noexcept { return base_ + Guarded::kGuard; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool intact() const {
    std::vector<std::byte> ends(2 * Guarded::kGuard);
    copy_now<Exec>(ends.data(), base_, Guarded::kGuard);
    copy_now<Exec>(ends.data() + Guarded::kGuard, data() + bytes_, Guarded::kGuard);
    return Guarded::all(ends.data(), ends.size(), Guarded::kCanary);
  }
  //! @brief Not a byte was written.
  [[nodiscard]] bool untouched() const {
    std::vector<std::byte> all(bytes_);
    copy_now<Exec>(all.data(), data(), bytes_);
    return intact() && Guarded::all(all.data(), bytes_, Guarded::kFill);
  }

 private:
  std::byte* base_;
  std::size_t bytes_;
  comm::Place place_;
};
template <>
class GuardedArena<exec::Host> : public Guarded {
 public:
  GuardedArena(std::size_t bytes, comm::Place) : Guarded(bytes) {}
};

//! @brief An arena that ranks in several processes reach, made by their parent, with a canary behind it.
class ShareableArena {
 public:
  explicit ShareableArena(std::size_t bytes)
      : shared_(exec::Host::allocate_shareable(bytes + Guarded::kGuard)), bytes_(bytes) {
    if (shared_.memory == nullptr) throw std::bad_alloc();
    std::fill_n(shared_.memory, bytes_, Guarded::kFill);
    std::fill_n(shared_.memory + bytes_, Guarded::kGuard, Guarded::kCanary);
  }
  ShareableArena(ShareableArena&& other) noexcept : shared_(std::exchange(other.shared_, {})), bytes_(other.bytes_) {}
  ShareableArena& operator=(ShareableArena&&) = delete;
  ~ShareableArena() {
    if (shared_.memory == nullptr) return;
    exec::Host::release_shareable(shared_.memory, bytes_ + Guarded::kGuard);
    ::close(shared_.fd);
  }
  [[nodiscard]] comm::ArenaMemory memory() const { return {{shared_.memory, bytes_}, shared_.fd}; }
  [[nodiscard]] bool intact() const { return Guarded::all(shared_.memory + bytes_, Guarded::kGuard, Guarded::kCanary); }

 private:
  exec::ShareableMemory shared_;
  std::size_t bytes_;
};

}  // namespace mori_ep::test
