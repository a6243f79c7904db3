// SPDX-License-Identifier: MIT
//! @file Tickets: who may use a buffer set, and the routing of the dispatch that filled it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "mori_ep/error.hpp"

namespace mori_ep::routing {

//! @brief Which ticket holds each buffer set; shared by an operator and its tickets, so either may go first.
class TicketLedger {
 public:
  static constexpr int kMaxSets = 2;
  enum class Stage : std::uint8_t { free, sent, received, combining };

  explicit TicketLedger(int sets) noexcept : sets_(sets) {}

  //! @brief Takes the set whose turn it is (all ranks take turns alike); `serial` names the ticket from now on.
  Result<int> take(int rank, std::uint64_t& serial) noexcept {
    std::lock_guard lock(mutex_);
    Entry& entry = entries_[static_cast<std::size_t>(turn_)];
    if (entry.stage != Stage::free)
      return Error{
          .code = Errc::buffer_set_busy,
          .rank = rank,
          .field = "num_buffer_sets",
          .value = sets_,
          .limit = kMaxSets,
          .hint = "Sets are used in turn: combine or drop the oldest ticket first, or configure two buffer sets."};
    int const set = turn_;
    turn_ = (turn_ + 1) % sets_;
    serial = entry.serial = ++last_serial_;
    entry.stage = Stage::sent;
    return set;
  }
  //! @brief Gives a just-taken set back: its dispatch was not enqueued.
  void untake(int set) noexcept {
    std::lock_guard lock(mutex_);
    entries_[static_cast<std::size_t>(set)].stage = Stage::free;
    turn_ = set;
  }
  [[nodiscard]] bool holds(int set, std::uint64_t serial, Stage stage) const noexcept {
    std::lock_guard lock(mutex_);
    const Entry& entry = entries_[static_cast<std::size_t>(set)];
    return entry.serial == serial && entry.stage == stage;
  }
  //! @brief Does the set belong to this ticket, in whatever stage? No more, once `void_all` was called.
  [[nodiscard]] bool knows(int set, std::uint64_t serial) const noexcept {
    std::lock_guard lock(mutex_);
    const Entry& entry = entries_[static_cast<std::size_t>(set)];
    return entry.serial == serial && entry.stage != Stage::free;
  }
  void advance(int set, std::uint64_t serial, Stage stage) noexcept {
    std::lock_guard lock(mutex_);
    Entry& entry = entries_[static_cast<std::size_t>(set)];
    if (entry.serial != serial) return;
    entry.stage = stage;
  }
  //! @brief The ticket is gone. A dispatch that was sent but never received still owes its receive half.
  void release(int set, std::uint64_t serial) noexcept {
    std::lock_guard lock(mutex_);
    Entry& entry = entries_[static_cast<std::size_t>(set)];
    if (entry.serial != serial) return;
    if (entry.stage == Stage::sent) entry.owes_receive = true;
    entry.stage = Stage::free;
  }
  [[nodiscard]] bool settle_receive(int set) noexcept {
    std::lock_guard lock(mutex_);
    return std::exchange(entries_[static_cast<std::size_t>(set)].owes_receive, false);
  }
  //! @brief How often all tickets were voided; a kept routing is good for the generation it was kept in.
  [[nodiscard]] std::uint64_t generation() const noexcept {
    std::lock_guard lock(mutex_);
    return generation_;
  }
  //! @brief Every ticket so far becomes a foreign one.
  void void_all() noexcept {
    std::lock_guard lock(mutex_);
    ++generation_;
    for (Entry& entry : entries_) entry = Entry{};
    turn_ = 0;
  }

 private:
  struct Entry {
    std::uint64_t serial = 0;
    Stage stage = Stage::free;
    bool owes_receive = false;
  };
  mutable std::mutex mutex_;
  std::array<Entry, kMaxSets> entries_{};
  std::uint64_t last_serial_ = 0, generation_ = 0;
  int sets_;
  int turn_ = 0;
};

//! @brief The receipt of one dispatch: it owns the routing that the matching combine will use. Move-only.
//!
//! `Op` is the operator's type, so a ticket of another composition does not compile where this one is wanted. Dropping
//! a ticket frees its buffer set without a combine.
template <class Op>
class Ticket {
 public:
  Ticket() noexcept = default;
  Ticket(Ticket&& other) noexcept { *this = std::move(other); }
  Ticket& operator=(Ticket&& other) noexcept {
    if (this != &other) {
      drop();
      ledger_ = std::exchange(other.ledger_, nullptr);
      serial_ = std::exchange(other.serial_, 0);
      set_ = other.set_;
      tokens_ = other.tokens_;
      weighted_ = other.weighted_;
    }
    return *this;
  }
  Ticket(const Ticket&) = delete;
  Ticket& operator=(const Ticket&) = delete;
  ~Ticket() { drop(); }

  //! @brief False once moved from, combined, or never filled.
  [[nodiscard]] bool valid() const noexcept { return ledger_ != nullptr; }
  //! @brief How many tokens this rank dispatched: combine gives as many rows.
  [[nodiscard]] int tokens() const noexcept { return tokens_; }
  //! @brief Which of the operator's buffer sets it holds.
  [[nodiscard]] int buffer_set() const noexcept { return set_; }

 private:
  friend Op;
  Ticket(std::shared_ptr<TicketLedger> ledger, int set, std::uint64_t serial, int tokens, bool weighted) noexcept
      : ledger_(std::move(ledger)), serial_(serial), set_(set), tokens_(tokens), weighted_(weighted) {}
  void drop() noexcept {
    if (ledger_ != nullptr) ledger_->release(set_, serial_);
    ledger_ = nullptr;
  }

  std::shared_ptr<TicketLedger> ledger_;
  std::uint64_t serial_ = 0;
  int set_ = 0;
  int tokens_ = 0;
  bool weighted_ = false;
};

}  // namespace mori_ep::routing
