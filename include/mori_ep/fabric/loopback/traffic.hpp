// SPDX-License-Identifier: MIT
//! @file Requests that are on their way: when they arrive, in which order, and what goes wrong with them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "mori_ep/fabric/fabric.hpp"
#include "mori_ep/fabric/loopback/ledger.hpp"
#include "mori_ep/fabric/loopback/luck.hpp"
#include "mori_ep/fabric/loopback/options.hpp"
#include "mori_ep/fabric/loopback/port.hpp"

namespace mori_ep::fabric::loopback {

//! @brief One endpoint's requests that do not arrive at once. They move when the endpoint is called.
//!
//! Steps of a request: its bytes in one part or two, its signal, its end. Where nothing is reordered a request's first
//! step waits for the last of the one before it on its queue pair. Else each step comes when luck has it, but a signal
//! waits for its own bytes, and with Order::in_queue_pair for all that was posted before it on its queue pair.
class Traffic {
 public:
  Traffic(int rank, Order order, const LoopbackOptions& options, const std::vector<std::shared_ptr<Port>>& ports)
      : rank_(rank),
        order_(order),
        options_(options),
        ports_(ports),
        luck_(options.seed * 0x632be59bd9b4e019ull + static_cast<std::uint64_t>(rank)),
        passes_(ports.size() * static_cast<std::size_t>(options.queue_pairs)) {
    vanish();
  }

  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;
  //! @brief What has completed has left: it arrives.
  ~Traffic() {
    for (Flight& flight : flights_)
      while (flight.ended && flight.stage != Stage::gone && !lost(flight)) step(flight, flight.due);
  }

  //! @brief How many of `n` requests the network feels like taking.
  std::size_t takes(std::size_t n) noexcept { return luck_.one_in(options_.full_one_in) ? luck_.below(n) : n; }

  void take(const WorkRequest& request, std::uint32_t queue_pair, Ledger& ledger, Time now) {
    vanish();
    ++taken_;
    Flight flight{.request = request, .queue_pair = queue_pair, .since = now, .due = now};
    if (ledger[queue_pair].error != nullptr) return end(flight, true, now);
    flight.due += way_of(request, now);
    if (request.id.operation != Operation::signal) {
      bool const parted = options_.reorder && request.bytes > 1;
      flight.cut = parted ? luck_.below(request.bytes) : request.bytes;
      flight.stage = Stage::first_part;
    }
    if (luck_.one_in(options_.early_one_in) && !lost(flight)) {
      if (request.id.operation != Operation::signal)
        flight.kept.assign(source_of(request), source_of(request) + request.bytes);
      flight.ended = true;
      end(flight, false, now);
    }
    flights_.push_back(std::move(flight));
  }

  //! @brief Moves what is due.
  void advance(Ledger& ledger, Time now) {
    ++pass_;
    for (Flight& flight : flights_) {
      move(flight, ledger, now);
      if (flight.stage == Stage::gone) continue;
      passes_[flight.queue_pair] = pass_;
      if (in_line()) break;
    }
    while (!flights_.empty() && flights_.front().stage == Stage::gone) flights_.pop_front();
    if (!in_line()) std::erase_if(flights_, [](const Flight& f) { return f.stage == Stage::gone; });
    std::erase_if(late_, [&](const Late& late) {
      if (late.due > now || !ledger.has_room() || waits()) return false;
      ledger.end(late.ended);
      return true;
    });
  }

  //! @brief A poll has seen the end of a request: perhaps not for the last time.
  void seen(Ended ended, const Ledger::QueuePair& queue_pair, Time now) {
    if (!luck_.one_in(options_.duplicate_one_in)) return;
    ended.again = true;
    ended.taken = queue_pair.taken;
    late_.push_back({ended, now + luck_.between(std::chrono::nanoseconds(0), options_.most_late)});
  }

 private:
  void vanish() noexcept {
    if (rank_ == options_.vanishing_rank && taken_ >= options_.vanishes_after)
      ports_[static_cast<std::size_t>(rank_)]->gone.store(true, std::memory_order_relaxed);
  }

  enum class Stage : std::uint8_t { first_part, second_part, signal, gone };
  struct Flight {
    WorkRequest request;
    std::uint32_t queue_pair;
    Time since, due;
    std::uint64_t cut = 0;  // bytes of the first part
    Stage stage = Stage::signal;
    bool ended = false;                // it has completed before it arrived
    std::vector<std::byte> kept = {};  // and these were its bytes
  };
  struct Late {
    Ended ended;
    Time due;
  };

  //! All requests arrive one after the other: behind one that is not due none is.
  [[nodiscard]] bool in_line() const noexcept {
    return !options_.reorder && options_.least_delay == options_.most_delay && options_.vanishing_rank < 0;
  }
  [[nodiscard]] bool waits() noexcept { return options_.reorder && luck_.one_in(2); }
  [[nodiscard]] Port& peer_of(const Flight& flight) const noexcept { return *ports_[flight.request.id.peer]; }
  [[nodiscard]] const std::byte* source_of(const WorkRequest& request) const noexcept {
    return ports_[static_cast<std::size_t>(rank_)]->arena.data() + request.local_offset;
  }
  [[nodiscard]] bool lost(const Flight& flight) const noexcept {
    return ports_[static_cast<std::size_t>(rank_)]->gone.load(std::memory_order_relaxed) ||
           peer_of(flight).gone.load(std::memory_order_relaxed);
  }

  [[nodiscard]] std::chrono::nanoseconds way_of(const WorkRequest& request, Time now) {
    auto way = options_.latency + luck_.between(options_.least_delay, options_.most_delay);
    if (options_.gbps > 0 && request.id.operation != Operation::signal) {
      if (sent_ < now) sent_ = now;
      sent_ += std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(request.bytes) / options_.gbps));
    }
    return sent_ > now ? way + (sent_ - now) : way;
  }

  void move(Flight& flight, Ledger& ledger, Time now) {
    if (flight.stage == Stage::gone) return;
    if (ledger[flight.queue_pair].error != nullptr) return finish(flight, true, now);
    if (lost(flight)) {
      if (flight.ended) return finish(flight, false, now);
      if (now < flight.since + options_.vanish_timeout) return;
      ledger.fail(flight.queue_pair,
                  request_error(rank_, flight.request.id, 0,
                                "No answer: the peer or this rank has left the network. Create an operator anew, "
                                "without it."));
      return finish(flight, true, now);
    }
    bool const behind = passes_[flight.queue_pair] == pass_;  // another of its queue pair that was posted before it
    while (flight.due <= now && flight.stage != Stage::gone && !waits()) {
      bool const keeps_order = !options_.reorder || (flight.stage == Stage::signal && order_ == Order::in_queue_pair);
      if (behind && keeps_order) return;
      step(flight, now);
    }
  }

  void step(Flight& flight, Time now) {
    const WorkRequest& r = flight.request;
    const std::byte* source = flight.ended ? flight.kept.data() : source_of(r);
    bool const signals = r.id.operation != Operation::put;
    switch (flight.stage) {
      case Stage::first_part:
        arrive(peer_of(flight), r.remote_offset, source, flight.cut);
        flight.stage = flight.cut < r.bytes ? Stage::second_part : Stage::signal;
        break;
      case Stage::second_part:
        arrive(peer_of(flight), r.remote_offset + flight.cut, source + flight.cut, r.bytes - flight.cut);
        flight.stage = Stage::signal;
        break;
      case Stage::signal:
        arrive(peer_of(flight), r);
        return finish(flight, false, now);
      case Stage::gone:
        return;
    }
    if (flight.stage == Stage::signal && !signals) finish(flight, false, now);
  }

  void finish(Flight& flight, bool failed, Time now) {
    flight.stage = Stage::gone;
    if (!flight.ended) end(flight, failed, now);
  }
  void end(const Flight& flight, bool failed, Time now) {
    late_.push_back(
        {{.id = flight.request.id, .queue_pair = flight.queue_pair, .failed = failed, .since = flight.since},
         now + luck_.between(std::chrono::nanoseconds(0), options_.most_late)});
  }

  int rank_;
  Order order_;
  LoopbackOptions options_;
  std::vector<std::shared_ptr<Port>> ports_;
  Luck luck_;
  std::vector<std::uint64_t> passes_;  // by queue pair: the pass that last met a request of it that has not arrived
  std::uint64_t pass_ = 0, taken_ = 0;
  Time sent_{};                 // when the last byte of this rank will have left it
  std::deque<Flight> flights_;  // in the order of posts
  std::vector<Late> late_;
};

}  // namespace mori_ep::fabric::loopback
