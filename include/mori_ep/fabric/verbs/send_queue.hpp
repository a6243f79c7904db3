// SPDX-License-Identifier: MIT
//! @file What a queue pair holds: which requests were taken, how far the device has come, and how each has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mori_ep/fabric/fabric.hpp"

namespace mori_ep::fabric::verbs {

//! @brief The books of one send queue. A queue pair works in order, so one number says it all: every write is counted
//!        as it is posted, and a completion of write n is one of all before it, told or not.
class SendQueue {
 public:
  //! @brief A request that was taken.
  struct Entry {
    WorkId id;
    std::uint32_t last = 0;  //!< the number of its last write
    std::uint64_t taken_ns = 0;
  };

  SendQueue(int depth, int writes)
      : entries_(static_cast<std::size_t>(depth)), writes_(static_cast<std::uint32_t>(writes)) {}

  [[nodiscard]] bool has_room() const noexcept { return taken_ - told_ < entries_.size(); }
  //! @brief Writes that may be posted now.
  [[nodiscard]] std::uint32_t room() const noexcept { return failed() ? 0 : writes_ - (posted_ - finished_); }
  [[nodiscard]] std::uint32_t posted() const noexcept { return posted_; }
  [[nodiscard]] std::uint32_t finished() const noexcept { return finished_; }
  //! @brief Where the next request's signal may lie: a place is free again once the request's end has been told.
  [[nodiscard]] std::size_t place(std::uint32_t ahead = 0) const noexcept { return (taken_ + ahead) % entries_.size(); }
  [[nodiscard]] std::uint32_t places_left() const noexcept {
    return static_cast<std::uint32_t>(entries_.size()) - (taken_ - told_);
  }

  //! @param last the number of its last write, posted or not
  void take(const WorkId& id, std::uint32_t last, std::uint64_t now_ns) noexcept {
    entries_[place()] = {id, last, now_ns};
    ++taken_;
  }
  void post(std::uint32_t writes) noexcept { posted_ += writes; }
  //! @brief A request of a failed queue pair: it never reaches the device.
  void take_in_vain(const WorkId& id, std::uint64_t now_ns) noexcept {
    take(id, posted_ + 1, now_ns);
    settle();
  }

  //! @brief The device is through with write `number`, and so with all before it.
  void finish(std::uint32_t number) noexcept {
    if (after(number, finished_)) finished_ = number;
    settle();
  }
  //! @brief From write `number` on, all fail.
  void fail(std::uint32_t number) noexcept {
    if (!failed_ || after(failed_at_, number)) failed_at_ = number;
    failed_ = true;
    settle();
  }
  [[nodiscard]] bool failed() const noexcept { return failed_; }

  //! @brief Requests whose end is known and has not been told.
  [[nodiscard]] bool has_ended() const noexcept { return told_ != ended_; }
  struct End {
    Entry entry;
    bool ok = true;
    bool first_failure = false;  //!< the one that failed, of which the others are consequences
  };
  [[nodiscard]] End tell() noexcept {
    End end{.entry = entries_[told_ % entries_.size()]};
    end.ok = !failed_ || after(failed_at_, end.entry.last);
    end.first_failure = !end.ok && !failure_told_;
    failure_told_ = failure_told_ || !end.ok;
    ++told_;
    return end;
  }

 private:
  //! Right across the wrap: no two writes in flight are half the numbers apart.
  static bool after(std::uint32_t a, std::uint32_t b) noexcept { return static_cast<std::int32_t>(a - b) > 0; }

  void settle() noexcept {
    // Of a failed queue pair nothing more is posted: once the device is through with what was, no request is left.
    if (failed_ && finished_ == posted_) ended_ = taken_;
    while (ended_ != taken_ && !after(entries_[ended_ % entries_.size()].last, finished_)) ++ended_;
  }

  std::vector<Entry> entries_;  // a ring
  std::uint32_t writes_;
  std::uint32_t taken_ = 0, ended_ = 0, told_ = 0;  // requests
  std::uint32_t posted_ = 0, finished_ = 0;         // writes
  std::uint32_t failed_at_ = 0;
  bool failed_ = false, failure_told_ = false;
};

}  // namespace mori_ep::fabric::verbs
