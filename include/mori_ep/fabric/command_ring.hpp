// SPDX-License-Identifier: MIT
//! @file A ring of commands in host-visible memory: many warps write, one host thread reads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <utility>

#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/error.hpp"
#include "mori_ep/exec/attributes.hpp"
#include "mori_ep/exec/concepts.hpp"
#include "mori_ep/fabric/command.hpp"

namespace mori_ep::fabric {

//! @brief How a push ended, and the number by which its command can be waited for.
struct Pushed {
  exec::WaitResult wait = {};
  std::uint32_t sequence = 0;
};

//! @brief The ring as kernels see it. Commands are numbered from the ring's start on, by 32 bits that wrap.
//!
//! What orders what: a slot may be written when the reader has freed it, which `freed` and `tail` say (it releases them
//! after its last look at the slot, the writer acquires; `known_tail` passes that on among writers). The three plain
//! words of a command, and all that its writer knows to have been written, are released by the publish of the fourth;
//! the reader acquires it.
struct CommandRingRef {
  Command* slots = nullptr;             //!< [capacity], host-visible
  std::uint64_t* freed = nullptr;       //!< [capacity], host-visible: {the command that the slot is free for, 0}
  std::uint64_t* tail = nullptr;        //!< host-visible: every command before this one has ended
  std::uint64_t* known_tail = nullptr;  //!< near the kernels: what one of them last read there
  std::uint32_t* head = nullptr;        //!< near the kernels: the next command's number
  std::uint32_t capacity = 0;           //!< a power of two
  std::uint32_t queue_pairs = 1;        //!< to each peer, of the fabric behind it: what a writer may choose among

  //! @brief Adds a request, which Command::holds; called by a whole warp, the result is lane 0's.
  //!
  //! The bytes of a put are visible to the network when the warps that wrote them have done flush_stores() and the block
  //! has met (block_sync) before one of its warps pushes. A full ring is waited for, as `limits` says. After a wait that
  //! failed the ring has a hole, behind which nothing is read until CommandRing::restart().
  template <exec::KernelContext Ctx>
  MORI_EP_HD Pushed push(Ctx& ctx, const WorkRequest& request, exec::WaitLimits limits) const {
    std::uint32_t const at = ctx.draw(head);
    if (ctx.lane() != 0) return {};
    Pushed pushed{.sequence = at};
    std::uint64_t* const slot_freed = freed + (at & (capacity - 1));
    if (seems_full(at, ctx.peek(known_tail))) {
      std::uint64_t const now = ctx.peek(tail);
      ctx.publish(known_tail, now);
      limits.peer = -1;  // a full ring is nobody's fault yet
      if (seems_full(at, now)) pushed.wait = ctx.wait(slot_freed, at, limits, exec::WaitOrder::acquire);
      if (pushed.wait.end != exec::WaitEnd::arrived) return pushed;
    }
    Command const command = Command::of(request, at);
    Command* const slot = slots + (at & (capacity - 1));
    for (int i = 0; i < 3; ++i) ctx.store(&slot->words[i], command.words[i]);
    ctx.publish(&slot->words[3], command.words[3]);
    return pushed;
  }

  //! @brief Waits until the command of that number and all before it have ended: their sources may be written again.
  //!        Called by one lane, before 2^31 commands more.
  template <exec::KernelContext Ctx>
  [[nodiscard]] MORI_EP_HD exec::WaitResult await_end(Ctx& ctx, std::uint32_t sequence, exec::WaitLimits limits) const {
    std::uint64_t const now = ctx.peek(tail);
    if (has_passed(now, sequence)) return {exec::WaitEnd::arrived, now};
    limits.peer = -1;
    exec::WaitResult got =
        ctx.wait(freed + (sequence & (capacity - 1)), sequence + capacity, limits, exec::WaitOrder::acquire);
    // The slot has been used and freed again: what was waited for is long over.
    if (got.end == exec::WaitEnd::out_of_step) got.end = exec::WaitEnd::arrived;
    return got;
  }

 private:
  //! Whatever a writer last read of the tail, the true one is there or further, and not past a command that is not
  //! written: the difference is no less than the number of commands in the ring.
  [[nodiscard]] MORI_EP_HD bool seems_full(std::uint32_t at, std::uint64_t tail_seen) const {
    return at - static_cast<std::uint32_t>(tail_seen) >= capacity;
  }
  [[nodiscard]] MORI_EP_HD static bool has_passed(std::uint64_t tail_seen, std::uint32_t sequence) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(tail_seen) - sequence) > 0;
  }
};

//! @brief The writing end of a ring of the host's own, for one thread.
class CommandWriter {
 public:
  CommandWriter(const CommandRingRef& ring, std::uint32_t start) noexcept : ring_(ring), next_(start) {}

  //! @brief False while the ring is full.
  bool push(const WorkRequest& request) noexcept {
    std::uint32_t const slot = next_ & (ring_.capacity - 1);
    if (exec::signal_epoch(std::atomic_ref(ring_.freed[slot]).load(std::memory_order_acquire)) != next_) return false;
    Command const command = Command::of(request, next_++);
    for (int i = 0; i < 3; ++i) ring_.slots[slot].words[i] = command.words[i];
    std::atomic_ref(ring_.slots[slot].words[3]).store(command.words[3], std::memory_order_release);
    return true;
  }

 private:
  CommandRingRef ring_;
  std::uint32_t next_;
};

//! @brief The reading end, for one host thread. Reads commands in order and frees their slots in order, later.
class CommandReader {
 public:
  CommandReader(const CommandRingRef& ring, std::uint32_t start) noexcept : ring_(ring), read_(start), freed_(start) {}

  [[nodiscard]] std::uint32_t capacity() const noexcept { return ring_.capacity; }
  //! @brief Of the command that next() gives next, and of the oldest whose slot is not free.
  [[nodiscard]] std::uint32_t position() const noexcept { return read_; }
  [[nodiscard]] std::uint32_t oldest() const noexcept { return freed_; }

  //! @brief The next command, once; nullptr when none is published.
  [[nodiscard]] const Command* next() noexcept {
    if (!published()) return nullptr;
    return &slot(read_++);
  }
  [[nodiscard]] bool published() const noexcept {
    if (read_ - freed_ == ring_.capacity) return false;
    std::atomic_ref<std::uint64_t> const word(slot(read_).words[3]);
    return static_cast<std::uint32_t>(word.load(std::memory_order_acquire) >> 32) == read_;
  }
  //! @brief A command that was given and whose slot is not free.
  [[nodiscard]] Command& slot(std::uint32_t sequence) const noexcept {
    return ring_.slots[sequence & (ring_.capacity - 1)];
  }
  //! @brief Frees the slots of the `n` oldest commands.
  void free(std::uint32_t n) noexcept {
    for (std::uint32_t i = 0; i < n; ++i, ++freed_)
      store(ring_.freed[freed_ & (ring_.capacity - 1)], exec::signal_word(freed_ + ring_.capacity, 0));
    if (n != 0) store(*ring_.tail, freed_);
  }

 private:
  static void store(std::uint64_t& word, std::uint64_t value) noexcept {
    std::atomic_ref<std::uint64_t>(word).store(value, std::memory_order_release);
  }

  CommandRingRef ring_;
  std::uint32_t read_, freed_;
};

//! @brief Owns a ring's memory: slots where the host reaches them, counters near the kernels. Outlives its kernels and
//!        its reader.
template <exec::ExecPolicy Exec>
class CommandRing {
 public:
  static constexpr std::int64_t kMostCapacity = 1 << 15;  // half of what exec::epoch_after tells apart

  //! @param capacity a power of two  @param start the first command's number
  static Result<CommandRing> create(std::int64_t capacity, std::uint32_t start = 0) noexcept {
    if (capacity < 1 || capacity > kMostCapacity || (capacity & (capacity - 1)) != 0)
      return Error{.code = Errc::invalid_argument,
                   .field = "capacity of a command ring",
                   .value = capacity,
                   .limit = kMostCapacity,
                   .hint = "Give a power of two."};
    CommandRing ring;
    auto const slots = static_cast<std::size_t>(capacity);
    std::size_t const board_bytes = slots * (sizeof(Command) + 8) + 8;
    ring.memory_ = std::make_shared<Memory>(board_bytes);
    if (ring.memory_->board.data() == nullptr || ring.memory_->near.data() == nullptr)
      return Error{.code = Errc::out_of_memory,
                   .field = "bytes of a command ring",
                   .value = static_cast<std::int64_t>(board_bytes + sizeof(Near)),
                   .hint = "Use a smaller ring."};
    auto* near_words = reinterpret_cast<Near*>(ring.memory_->near.data());
    CommandRingRef& ref = ring.ref_;
    ref.slots = reinterpret_cast<Command*>(ring.memory_->board.data());
    ref.freed = reinterpret_cast<std::uint64_t*>(ref.slots + slots);
    ref.tail = ref.freed + slots;
    ref.known_tail = &near_words->tail;
    ref.head = &near_words->head;
    ref.capacity = static_cast<std::uint32_t>(capacity);
    if (Status s = ring.restart(start); !s.ok()) return s;
    return Result<CommandRing>(std::move(ring));
  }

  //! @brief Empties the ring, with all holes. No kernel uses it meanwhile, and readers from before are of no use.
  Status restart(std::uint32_t start = 0) noexcept {
    start_ = start;
    for (std::uint32_t i = 0; i < ref_.capacity; ++i) {
      std::uint32_t const at = start + i, slot = at & (ref_.capacity - 1);
      ref_.slots[slot] = Command::of({}, at - ref_.capacity);
      ref_.freed[slot] = exec::signal_word(at, 0);
    }
    *ref_.tail = start;
    Near const fresh{start, start};
    return Exec::copy(memory_->near.data(), &fresh, sizeof(fresh));
  }

  [[nodiscard]] const CommandRingRef& ref() const noexcept { return ref_; }
  //! @brief One at a time, from the start.
  [[nodiscard]] CommandReader reader() const noexcept { return {ref_, start_}; }
  //! @brief What it owns, for those who free it later than the ring.
  [[nodiscard]] std::shared_ptr<const void> memory() const noexcept { return memory_; }
  [[nodiscard]] CommandWriter writer() const noexcept { return {ref_, start_}; }  //!< where no kernel writes

 private:
  struct Near {
    std::uint64_t tail;
    std::uint32_t head;
  };

  struct Memory {
    explicit Memory(std::size_t board_bytes) noexcept
        : board(board_bytes, comm::Place::board), near(sizeof(Near), comm::Place::device) {}
    comm::Arena<Exec> board, near;
  };

  CommandRing() = default;

  std::shared_ptr<Memory> memory_;
  CommandRingRef ref_;
  std::uint32_t start_ = 0;
};

}  // namespace mori_ep::fabric
