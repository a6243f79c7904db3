// SPDX-License-Identifier: MIT
//! @file The symmetric heap: one arena per rank, and where every peer's arena is.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <fcntl.h>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/fd_exchange.hpp"
#include "mori_ep/comm/random_bytes.hpp"
#include "mori_ep/exec/concepts.hpp"

namespace mori_ep::comm {

//! @brief Which of a machine's memories: where kernels work, or where the host may read and write, too.
enum class Place { device, board };

//! @brief Memory that a caller brings for an arena. Ranks that are threads of one process reach `bytes`. Ranks in several
//!        processes need `fd`, too, by which the others map it from its first byte on: what Exec::allocate_shareable()
//!        gives, a file of shared memory on the host, an allocation of cuMemCreate on NVIDIA. It stays the caller's, who
//!        may close it once the operator is created.
struct ArenaMemory {
  std::span<std::byte> bytes = {};
  int fd = -1;
};

//! @brief One rank's arena as this process sees it: its own, the caller's (who keeps it alive until every rank's operator
//! is gone), or a mapping of another process's.
template <exec::ExecPolicy Exec>
class Arena {
 public:
  //! @brief Owned and zeroed; `data()` is nullptr when there was no memory. `shareable`: other processes can map it.
  Arena(std::size_t bytes, Place place, bool shareable = false) noexcept : bytes_(bytes), place_(place) {
    if (!shareable) {
      data_ = place == Place::device ? Exec::allocate(bytes) : Exec::allocate_board(bytes);
      kind_ = Kind::owned;
    } else if constexpr (exec::SharesBetweenProcesses<Exec>) {
      auto const got = place == Place::device ? Exec::allocate_shareable(bytes) : Exec::allocate_shareable_board(bytes);
      data_ = got.memory;
      shared_as_ = Fd(got.fd);
      kind_ = Kind::shareable;
    }
  }
  explicit Arena(const ArenaMemory& brought) noexcept : data_(brought.bytes.data()), bytes_(brought.bytes.size()) {
    if (brought.fd >= 0) shared_as_ = Fd(::fcntl(brought.fd, F_DUPFD_CLOEXEC, 0));
  }
  //! @brief Another process's arena; `data()` is nullptr when it cannot be mapped.
  Arena(const Fd& shared_as, std::size_t bytes, Place place) noexcept : bytes_(bytes), place_(place) {
    if constexpr (exec::SharesBetweenProcesses<Exec>) {
      data_ = place == Place::device ? Exec::map_shared(shared_as.get(), bytes)
                                     : Exec::map_shared_board(shared_as.get(), bytes);
      kind_ = Kind::mapped;
    }
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (data_ == nullptr) return;
    bool const on_device = place_ == Place::device;
    if (kind_ == Kind::owned) {
      on_device ? Exec::release(data_, bytes_) : Exec::release_board(data_, bytes_);
    } else if constexpr (exec::SharesBetweenProcesses<Exec>) {
      if (kind_ == Kind::shareable)
        on_device ? Exec::release_shareable(data_, bytes_) : Exec::release_shareable_board(data_, bytes_);
      else if (kind_ == Kind::mapped)
        on_device ? Exec::unmap_shared(data_, bytes_) : Exec::unmap_shared_board(data_, bytes_);
    }
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool owned() const noexcept { return kind_ != Kind::borrowed; }
  [[nodiscard]] Place place() const noexcept { return place_; }
  //! @brief Frees `memory` no earlier than this arena, in place of what was kept before. Called by the owner's thread.
  void keep(std::shared_ptr<const void> memory) noexcept { kept_ = std::move(memory); }
  //! @brief By which other processes map it; not open once they have.
  [[nodiscard]] Fd& shared_as() noexcept { return shared_as_; }

 private:
  enum class Kind { borrowed, owned, shareable, mapped };
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  Place place_ = Place::device;
  Kind kind_ = Kind::borrowed;
  Fd shared_as_;
  std::shared_ptr<const void> kept_;
};

//! @brief This rank's arena and the address at which this process sees every peer's.
//!
//! Every process holds all arenas of its world, so operators may be destroyed in any order: a peer's late store still
//! finds memory.
template <exec::ExecPolicy Exec>
class SymmetricHeap {
 public:
  //! @brief Collective among `members` (ascending ranks, this one among them): exchanges the arenas. All are on this
  //!        host, and an arena is shareable where a member is in another process. What is asked of a rank that is no
  //!        member is this rank's own. Errors, of one member and then of all: as Communicator's calls; out_of_memory
  //!        when a peer's arena cannot be mapped; system_error when memory cannot be passed.
  static Result<SymmetricHeap> join(const Communicator& comm, std::span<const int> members,
                                    std::shared_ptr<Arena<Exec>> mine) noexcept {
    SymmetricHeap heap;
    struct Entry {
      const std::shared_ptr<Arena<Exec>>* address;  // these two mean something in the rank's own process
      const std::byte* data;
      std::size_t bytes;
      std::uint64_t mark;
    };
    bool const apart = !comm.in_process(members);
    Deadline const deadline(comm.timeout());  // of all that follows: nobody waits twice for one that is gone
    Entry entry{&mine, mine->data(), mine->bytes(), 0};
    Status here = mine->owned() || !apart ? Status() : put_mark(*mine, entry.mark);
    std::vector<Entry> entries(members.size());
    if (Status s = comm.all_gather(members, &entry, entries.data(), sizeof(entry), deadline.left()); !s.ok()) return s;
    std::vector<Fd> descriptors(members.size());
    if (apart) {
      auto got = FdExchange(comm, members, deadline).run(mine->shared_as());
      if (here.ok()) here = got.status();
      if (got.ok()) descriptors = std::move(*got);
    }
    heap.arenas_.assign(static_cast<std::size_t>(comm.world()), mine);
    for (std::size_t i = 0; i < members.size() && here.ok(); ++i) {
      int const r = members[i];
      auto& arena = heap.arenas_[static_cast<std::size_t>(r)];
      if (r != comm.rank())
        arena = comm.in_process(r) ? *entries[i].address
                                   : std::make_shared<Arena<Exec>>(descriptors[i], entries[i].bytes, mine->place());
      bool const same = r != comm.rank() && comm.in_process(r) && overlap(*mine, entries[i].data, entries[i].bytes);
      if (arena->data() == nullptr || same || !has_mark(*arena, entries[i].mark))
        here = entries[i].mark == 0 && !same
                   ? cannot_map(comm.rank(), r, static_cast<std::int64_t>(entries[i].bytes))
                   : other_memory(comm.rank(), r, static_cast<std::int64_t>(entries[i].bytes));
    }
    // Also a barrier: the addresses above are of stack objects.
    Outcome const outcome{.code = here.code(), .peer = here.error().peer, .value = here.error().value};
    std::vector<Outcome> outcomes(members.size());
    Status const met =
        comm.all_gather(members, &outcome, outcomes.data(), sizeof(outcome), deadline.left() + kLastWord);
    mine->shared_as().close();
    if (Status s = judge(outcomes, members, here, comm.rank()); !s.ok()) return s;
    if (!met.ok()) return met;
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

  //! @brief Is this rank's arena not the caller's memory?
  [[nodiscard]] bool owned() const noexcept { return mine_->owned(); }
  //! @brief Memory of this rank that goes with its arena: when nobody uses that any more. (To free a GPU's memory, pinned
  //!        memory, too, the runtime waits for the device's kernels and holds back all launches meanwhile. Those kernels
  //!        may wait for a launch of a rank beside.) In place of what was kept before.
  void keep(std::shared_ptr<const void> memory) noexcept { mine_->keep(std::move(memory)); }
  //! @brief Keeps this rank's arena.
  [[nodiscard]] std::shared_ptr<const void> owner() const noexcept { return mine_; }
  [[nodiscard]] std::byte* base() const noexcept { return mine_->data(); }
  [[nodiscard]] std::byte* base_of(int rank) const noexcept { return arenas_[static_cast<std::size_t>(rank)]->data(); }

 private:
  struct Abandoned {
    std::vector<std::shared_ptr<Arena<Exec>>> arenas;
    Abandoned* next;
  };
  //! For those that have waited for somebody in vain to tell each other.
  static constexpr std::chrono::milliseconds kLastWord{250};
  //! What a rank's part of the join came to. Plain data.
  struct Outcome {
    Errc code = Errc::ok;
    std::int32_t peer = -1;
    std::int64_t value = 0;
  };
  static bool overlap(const Arena<Exec>& mine, const std::byte* data, std::size_t bytes) noexcept {
    std::less<const std::byte*> const before;
    return before(mine.data(), data + bytes) && before(data, mine.data() + mine.bytes());
  }
  //! A caller's descriptor may be of other memory than the caller's: a peer finds a number there that only this rank
  //! knows, or it does not map what it should. 0 is no mark.
  static Status put_mark(Arena<Exec>& arena, std::uint64_t& mark) noexcept {
    if (Status s = draw(std::as_writable_bytes(std::span(&mark, 1))); !s.ok()) return s;
    mark |= 1;
    return Exec::copy(arena.data(), &mark, sizeof(mark));
  }
  static bool has_mark(const Arena<Exec>& arena, std::uint64_t mark) noexcept {
    std::uint64_t found = 0;
    return mark == 0 || (Exec::copy(&found, arena.data(), sizeof(found)).ok() && found == mark);
  }
  static Error cannot_map(int rank, int peer, std::int64_t bytes) noexcept {
    return {.code = Errc::out_of_memory,
            .phase = Phase::create,
            .rank = rank,
            .peer = peer,
            .field = "bytes of a peer's arena",
            .value = bytes,
            .hint =
                "It cannot be mapped there: raise that process's address space limit (ulimit -v); GPUs must be "
                "visible to both processes and linked to each other."};
  }
  static Error other_memory(int rank, int peer, std::int64_t bytes) noexcept {
    return {.code = Errc::invalid_argument,
            .phase = Phase::create,
            .rank = rank,
            .peer = peer,
            .field = "bytes of a caller's memory",
            .value = bytes,
            .hint =
                "Its descriptor does not give this rank that memory: it must be open for reading and writing, be of "
                "the span from its first byte on and as long, and of no other rank's."};
  }
  //! The error of the lowest rank that failed by itself, before those that failed because a peer did.
  static Status judge(const std::vector<Outcome>& outcomes, std::span<const int> members, const Status& here,
                      int me) noexcept {
    std::size_t first = outcomes.size();
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
      Errc const code = outcomes[i].code;
      if (code == Errc::ok || (code == Errc::missing_rank && first < outcomes.size())) continue;
      first = i;
      if (code != Errc::missing_rank) break;
    }
    if (first == outcomes.size() || members[first] == me) return here;
    const Outcome& of = outcomes[first];
    int const rank = members[first];
    if (of.code == Errc::out_of_memory) return cannot_map(rank, of.peer, of.value);
    if (of.code == Errc::invalid_argument) return other_memory(rank, of.peer, of.value);
    if (of.code == Errc::missing_rank && !here.ok()) return here;
    return Error{.code = of.code,
                 .phase = Phase::create,
                 .rank = rank,
                 .peer = of.peer,
                 .field = "call that passes memory",
                 .value = of.value,
                 .hint = "That rank cannot exchange memory with the peer; its own error names the call."};
  }

  static inline std::atomic<Abandoned*> abandoned_{nullptr};

  std::shared_ptr<Arena<Exec>> mine_;
  std::vector<std::shared_ptr<Arena<Exec>>> arenas_;
};

}  // namespace mori_ep::comm
