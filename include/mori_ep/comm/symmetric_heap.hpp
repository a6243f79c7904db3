// SPDX-License-Identifier: MIT
//! @file The symmetric heap: one arena per rank, and where every peer's arena is.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/exec/concepts.hpp"

namespace mori_ep::comm {

//! @brief Which of a machine's memories: where kernels work, or where the host may read and write, too.
enum class Place { device, board };

//! @brief One rank's arena: owned, or borrowed from the caller (who keeps it alive until every rank's operator is
//! gone).
template <exec::ExecPolicy Exec>
class Arena {
 public:
  //! @brief Owned and zeroed; `data()` is nullptr when there was no memory.
  Arena(std::size_t bytes, Place place) noexcept
      : data_(place == Place::device ? Exec::allocate(bytes) : Exec::allocate_board(bytes)),
        bytes_(bytes),
        owned_(true),
        place_(place) {}
  explicit Arena(std::span<std::byte> borrowed) noexcept
      : data_(borrowed.data()), bytes_(borrowed.size()), owned_(false) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (!owned_ || data_ == nullptr) return;
    place_ == Place::device ? Exec::release(data_, bytes_) : Exec::release_board(data_, bytes_);
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
  bool owned_;
  Place place_ = Place::device;
};

//! @brief This rank's arena and the base address of every peer's. Ranks are threads, so an address is valid for all.
//!
//! Every rank holds all arenas of its world, so operators may be destroyed in any order: a peer's late store still
//! finds memory.
template <exec::ExecPolicy Exec>
class SymmetricHeap {
 public:
  //! @brief Collective: exchanges the arenas. Errors: as Communicator's calls.
  static Result<SymmetricHeap> join(const Communicator& comm, std::shared_ptr<Arena<Exec>> mine) noexcept {
    auto const world = static_cast<std::size_t>(comm.world());
    SymmetricHeap heap;
    const std::shared_ptr<Arena<Exec>>* address = &mine;
    std::vector<const std::shared_ptr<Arena<Exec>>*> addresses(world);
    if (Status s = comm.all_gather(&address, addresses.data(), sizeof(address)); !s.ok()) return s;
    for (auto* peer : addresses) heap.arenas_.push_back(*peer);
    if (Status s = comm.barrier(); !s.ok()) return s;  // the addresses above are of stack objects
    heap.mine_ = std::move(mine);
    return Result<SymmetricHeap>(std::move(heap));
  }

  //! @brief Never frees any of the arenas: a kernel that does not end may still use them. They stay reachable, so that a
  //!        leak checker does not take what is kept on purpose for what was lost.
  void abandon() noexcept {
    auto* kept = new (std::nothrow) Abandoned{arenas_, nullptr};
    if (kept == nullptr) return;
    kept->next = abandoned_.load(std::memory_order_relaxed);
    while (!abandoned_.compare_exchange_weak(kept->next, kept, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

  [[nodiscard]] std::byte* base() const noexcept { return mine_->data(); }
  [[nodiscard]] std::byte* base_of(int rank) const noexcept { return arenas_[static_cast<std::size_t>(rank)]->data(); }

 private:
  struct Abandoned {
    std::vector<std::shared_ptr<Arena<Exec>>> arenas;
    Abandoned* next;
  };
  static inline std::atomic<Abandoned*> abandoned_{nullptr};

  std::shared_ptr<Arena<Exec>> mine_;
  std::vector<std::shared_ptr<Arena<Exec>>> arenas_;
};

}  // namespace mori_ep::comm
