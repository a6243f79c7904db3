// SPDX-License-Identifier: MIT
//! @file One rank of verbs_mesh: rounds with every peer at once, each peer at its own pace.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include <sched.h>

#include "fabric/verbs_mesh/round.hpp"
#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/fabric/verbs.hpp"

namespace mori_ep::test {

struct MeshOptions {
  int rounds = 200, most = 20000, queue_pairs = 3, depth = 16;
  std::uint64_t seed = 1;
  int mtu = 0;          //!< that the paths between rank 0 and the others must have; 0: any
  int killed = -1;      //!< a rank that kills itself half way
  int large_bytes = 0;  //!< one more put of so many
  int stream_mib = 0;   //!< how much rank 0 puts to rank 1, to see how fast
  int seconds = 120;    //!< without any progress
  bool quiet = false;
};

class MeshRank {
 public:
  MeshRank(const comm::Communicator& comm, const MeshOptions& options)
      : comm_(comm),
        options_(options),
        layout_{comm.world(), static_cast<std::size_t>(std::max({4 * options.most, options.large_bytes, 65536}))},
        arena_(layout_.bytes() / 64 + 1),
        peers_(static_cast<std::size_t>(comm.world())) {
    std::fill_n(base(), layout_.bytes(), MeshRound::kEmpty);
    std::fill_n(base(), layout_.word(comm.world(), 0), std::byte{0});
  }

  Status run(const Environment& environment) {
    return run(environment,
               [&](const auto& arena, const auto& options) { return fabric::Verbs::connect(comm_, arena, options); });
  }
  //! @param connect from an arena and options to a fabric
  template <class Connect>
  Status run(const Environment& environment, Connect&& connect) {
    fabric::Verbs::Options choice(environment);
    choice.num_qp_per_pe = options_.queue_pairs;
    choice.depth = options_.depth;
    auto connected = connect(fabric::Verbs::Arena{base(), layout_.bytes()}, choice);
    if (!connected.ok()) return connected.status();
    verbs_ = &*connected;
    int const far = comm_.rank() == 0 ? comm_.world() - 1 : 0;
    if (options_.mtu != 0 && verbs_->mtu(far) != options_.mtu)
      return wrong("path MTU", verbs_->mtu(far), options_.mtu, far);
    auto const began = std::chrono::steady_clock::now();
    if (Status s = play_rounds(); !s.ok()) return s;
    if (!options_.quiet) report(std::chrono::steady_clock::now() - began);
    if (options_.large_bytes > 0)
      if (Status s = put_large(); !s.ok()) return s;
    if (options_.stream_mib > 0)
      if (Status s = stream(); !s.ok()) return s;
    if (options_.killed >= 0)
      if (Status s = post_in_vain(); !s.ok()) return s;
    // Whoever leaves first looks like one that has died.
    std::vector<int> living;
    for (int r = 0; r < comm_.world(); ++r)
      if (r != options_.killed) living.push_back(r);
    return comm_.all_gather(living, nullptr, nullptr, 0);
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    std::uint32_t sent = 0, received = 0;  // rounds
    std::deque<fabric::WorkRequest> to_post;
    std::set<std::uint64_t> in_flight;  // packed ids
    std::uint16_t sequence = 0;
    Clock::time_point last_progress = Clock::now();
    int errors = 0;
    bool broken = false;
  };

  [[nodiscard]] std::byte* base() noexcept { return reinterpret_cast<std::byte*>(arena_.data()); }
  [[nodiscard]] std::uint64_t word(int peer, std::size_t i) noexcept {
    auto* const at = reinterpret_cast<std::uint64_t*>(base() + layout_.word(peer, i));
    return std::atomic_ref(*at).load(std::memory_order_acquire);
  }
  [[nodiscard]] Status wrong(const char* what, std::int64_t value, std::int64_t limit, int peer) const {
    return Error{.code = Errc::invalid_argument,
                 .rank = comm_.rank(),
                 .peer = peer,
                 .field = what,
                 .value = value,
                 .limit = limit};
  }
  [[nodiscard]] MeshRound round(int from, int to, std::uint32_t number) const {
    return {layout_, options_.seed, from, to, number, options_.queue_pairs, options_.most};
  }

  void ask(int peer, fabric::WorkRequest request) {
    Peer& p = peers_[static_cast<std::size_t>(peer)];
    request.id.peer = static_cast<std::uint16_t>(peer);
    request.id.sequence = p.sequence++ & 0xfff;
    p.to_post.push_back(request);
  }
  void ask_signal(int peer, std::size_t queue_pair, std::size_t word_index, std::uint32_t number) {
    ask(peer, {.id = {.operation = fabric::Operation::signal,
                      .queue_pair = static_cast<std::uint8_t>(queue_pair),
                      .epoch = number},
               .signal_offset = layout_.word(comm_.rank(), word_index),
               .signal = exec::signal_word(number, 0)});
  }

  void post(Peer& peer) {
    while (!peer.to_post.empty()) {
      std::vector<fabric::WorkRequest> batch(peer.to_post.begin(), peer.to_post.end());
      std::size_t const taken = verbs_->post(batch);
      for (std::size_t i = 0; i < taken; ++i) peer.in_flight.insert(batch[i].id.packed());
      peer.to_post.erase(peer.to_post.begin(), peer.to_post.begin() + static_cast<std::ptrdiff_t>(taken));
      if (taken == 0) return;
    }
  }

  Status poll() {
    fabric::Completion done[5];  // few, so that completions are left over
    for (std::size_t n = 5; n == 5;) {
      n = verbs_->poll(done);
      for (std::size_t i = 0; i < n; ++i) {
        int const r = done[i].id.peer;
        Peer& peer = peers_[static_cast<std::size_t>(r)];
        if (peer.in_flight.erase(done[i].id.packed()) != 1) return wrong("completion of no request", r, 0, r);
        peer.last_progress = Clock::now();
        if (done[i].status.ok()) continue;
        const Error& error = done[i].status.error();
        if (r != options_.killed || error.peer != r || error.code != Errc::fabric_error) return error;
        if (peer.errors++ == 0) std::printf("rank %d, as it should: %s\n", comm_.rank(), error.message().c_str());
        if (!peer.broken) peer.to_post.clear();
        peer.broken = true;
      }
    }
    return {};
  }

  Status advance(int r) {
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    auto const rounds = static_cast<std::uint32_t>(options_.rounds);
    bool const acknowledged = exec::signal_epoch(word(r, MeshLayout::kAck)) == peer.sent;
    if (acknowledged && peer.to_post.empty() && peer.in_flight.empty() && peer.sent < rounds) {
      MeshRound const next = round(comm_.rank(), r, ++peer.sent);
      next.fill(base() + layout_.out(r));
      for (const fabric::WorkRequest& request : next.requests) ask(r, request);
      peer.last_progress = Clock::now();
    }
    if (peer.received < rounds) {
      MeshRound const next = round(r, comm_.rank(), peer.received + 1);
      bool here = true;
      for (const auto& signal : next.signals) here = here && word(r, signal.queue_pair) == signal.word;
      if (here) {
        if (auto const bytes = next.take(base() + layout_.in(r)); bytes != 0)
          return wrong("wrong bytes", static_cast<std::int64_t>(bytes), 0, r);
        ++peer.received;
        ask_signal(r, peer.received % static_cast<std::size_t>(options_.queue_pairs), MeshLayout::kAck, peer.received);
        peer.last_progress = Clock::now();
      }
    }
    // Nobody hears that a peer is gone who sends it nothing.
    if (options_.killed >= 0 && peer.in_flight.empty() && Clock::now() - peer.last_progress > std::chrono::seconds(1))
      ask_signal(r, 0, MeshLayout::kProbe, peer.sent);
    return {};
  }

  [[nodiscard]] bool finished(int r) noexcept {
    const Peer& peer = peers_[static_cast<std::size_t>(r)];
    if (peer.broken || r == options_.killed) return peer.broken && peer.in_flight.empty();
    auto const rounds = static_cast<std::uint32_t>(options_.rounds);
    return peer.sent == rounds && peer.received == rounds && peer.to_post.empty() && peer.in_flight.empty() &&
           exec::signal_epoch(word(r, MeshLayout::kAck)) == rounds;
  }

  Status play_rounds() {
    for (bool all = false; !all;) {
      all = true;
      for (int r = 0; r < comm_.world(); ++r) {
        Peer& peer = peers_[static_cast<std::size_t>(r)];
        if (!peer.broken)
          if (Status s = advance(r); !s.ok()) return s;
        post(peer);
        if (comm_.rank() == options_.killed && peer.sent > static_cast<std::uint32_t>(options_.rounds) / 2)
          (void)::raise(SIGKILL);
        bool const done = finished(r);
        if (!done && Clock::now() - peer.last_progress > std::chrono::seconds(options_.seconds))
          return wrong("rounds sent without an answer", peer.sent, peer.received, r);
        all = all && done;
      }
      if (Status s = poll(); !s.ok()) return s;
      (void)::sched_yield();
    }
    return {};
  }

  //! Posts what is asked of `r`, and waits for all of it to complete.
  Status complete(int r) {
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    for (auto const began = Clock::now(); !peer.to_post.empty() || !peer.in_flight.empty();) {
      post(peer);
      if (Status s = poll(); !s.ok()) return s;
      if (Clock::now() - began > std::chrono::seconds(options_.seconds))
        return wrong("requests in flight", static_cast<std::int64_t>(peer.in_flight.size()), 0, r);
    }
    return {};
  }

  //! One put that the device cannot do in one message, with its signal, to the next rank.
  Status put_large() {
    int const me = comm_.rank(), to = (me + 1) % comm_.world(), from = (me + comm_.world() - 1) % comm_.world();
    auto const bytes = static_cast<std::size_t>(options_.large_bytes);
    std::uint32_t const number = static_cast<std::uint32_t>(options_.rounds) + 1;
    fill_run(base() + layout_.out(to), bytes, mix(options_.seed, static_cast<std::uint64_t>(me)));
    ask(to, {.id = {.operation = fabric::Operation::put_signal, .epoch = number},
             .local_offset = layout_.out(to),
             .remote_offset = layout_.in(me),
             .bytes = bytes,
             .signal_offset = layout_.word(me, 0),
             .signal = exec::signal_word(number, 0)});
    for (auto const began = Clock::now(); word(from, 0) != exec::signal_word(number, 0);) {
      post(peers_[static_cast<std::size_t>(to)]);
      if (Status s = poll(); !s.ok()) return s;
      if (Clock::now() - began > std::chrono::seconds(options_.seconds)) return wrong("large put", 0, 1, from);
    }
    std::vector<std::byte> expected(bytes);
    fill_run(expected.data(), bytes, mix(options_.seed, static_cast<std::uint64_t>(from)));
    if (std::memcmp(expected.data(), base() + layout_.in(from), bytes) != 0) return wrong("large put", 1, 0, from);
    return complete(to);
  }

  Status stream() {
    if (Status s = comm_.barrier(); !s.ok()) return s;
    constexpr std::size_t kBytes = 65536;
    int const count = options_.stream_mib * 16;
    auto const began = Clock::now();
    if (comm_.rank() == 0)
      for (int i = 0; i < count; ++i) {
        ask(1, {.id = {.operation = fabric::Operation::put, .epoch = 1},
                .local_offset = layout_.out(1),
                .remote_offset = layout_.in(0),
                .bytes = kBytes});
        post(peers_[1]);
        if (Status s = poll(); !s.ok()) return s;
      }
    if (Status s = complete(1); !s.ok()) return s;
    std::chrono::duration<double> const took = Clock::now() - began;
    if (comm_.rank() == 0)
      std::printf("stream: %d puts of %zu bytes over one queue pair: %.1f MB/s\n", count, kBytes,
                  static_cast<double>(count) * kBytes / took.count() * 1e-6);
    return comm_.barrier();
  }

  //! A queue pair that has failed takes requests, and completes each with its error, at once.
  Status post_in_vain() {
    Peer& peer = peers_[static_cast<std::size_t>(options_.killed)];
    int const before = peer.errors;
    for (int i = 0; i < 3 * options_.depth; ++i) ask_signal(options_.killed, 0, MeshLayout::kProbe, 1);
    if (Status s = complete(options_.killed); !s.ok()) return s;
    if (peer.errors - before != 3 * options_.depth)
      return wrong("errors of a failed queue pair", peer.errors - before, 3 * options_.depth, options_.killed);
    return {};
  }

  void report(Clock::duration took) const {
    fabric::Counters sum;
    for (int r = 0; r < comm_.world(); ++r) {
      const fabric::Counters& c = verbs_->counters(r);
      fabric::Counters::add(sum.bytes, c.bytes);
      fabric::Counters::add(sum.messages, c.messages);
      fabric::Counters::add(sum.refusals, c.refusals);
      fabric::Counters::add(sum.errors, c.errors);
      sum.waited(c.longest_wait_ns);
    }
    double const seconds = std::chrono::duration<double>(took).count();
    std::printf(
        "rank %d of %d on %s, MTU %d: %d rounds in %.1f s, %llu requests, %.1f MB (%.1f MB/s), %llu times full, %llu "
        "errors, longest wait %.0f ms\n",
        comm_.rank(), comm_.world(), verbs_->device().c_str(), verbs_->mtu(comm_.rank() == 0 ? comm_.world() - 1 : 0),
        options_.rounds, seconds, static_cast<unsigned long long>(sum.messages), static_cast<double>(sum.bytes) * 1e-6,
        static_cast<double>(sum.bytes) * 1e-6 / seconds, static_cast<unsigned long long>(sum.refusals),
        static_cast<unsigned long long>(sum.errors), static_cast<double>(sum.longest_wait_ns) * 1e-6);
  }

  comm::Communicator comm_;
  MeshOptions options_;
  MeshLayout layout_;
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> arena_;
  std::vector<Peer> peers_;
  fabric::Verbs* verbs_ = nullptr;
};

}  // namespace mori_ep::test
