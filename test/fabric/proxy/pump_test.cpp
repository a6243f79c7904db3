// SPDX-License-Identifier: MIT
// Random programs over random networks, all in one thread, against plain loops that say which bytes must be where.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/fabric/command_ring.hpp"
#include "mori_ep/fabric/proxy/pump.hpp"
#include "support/catch.hpp"
#include "support/loopback_world.hpp"
#include "support/random.hpp"
#include "support/watched_fabric.hpp"

namespace mori_ep::test {

using fabric::Fault;
using fabric::LoopbackOptions;
using fabric::Operation;
using fabric::Order;
using fabric::WorkRequest;
using Ring = fabric::CommandRing<exec::Host>;
using std::chrono::microseconds;

namespace {

constexpr std::uint64_t kRow = 64;

//! Where things are in an arena: a signal and a row for each command of each rank, and the rows that this rank sends.
struct Map {
  int world, commands;
  [[nodiscard]] std::uint64_t signal(int from, int n) const { return 8 * index(from, n); }
  [[nodiscard]] std::uint64_t row(int from, int n) const { return signals() + kRow * index(from, n); }
  [[nodiscard]] std::uint64_t source(int n) const { return row(world, n); }
  [[nodiscard]] std::uint64_t bytes() const { return source(commands); }

 private:
  [[nodiscard]] std::uint64_t index(int from, int n) const { return static_cast<std::uint64_t>(from * commands + n); }
  [[nodiscard]] std::uint64_t signals() const { return (8 * index(world, 0) + 15) / 16 * 16; }
};

std::byte byte_of(std::uint64_t seed, int from, int n, std::uint64_t at) {
  return static_cast<std::byte>(1 +
                                mix(seed, static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(n), at) % 255);
}

//! The n-th command of each rank.
std::vector<std::vector<WorkRequest>> draw_program(const Map& map, int queue_pairs, Rng& rng) {
  std::vector<std::vector<WorkRequest>> program(static_cast<std::size_t>(map.world));
  for (int from = 0; from < map.world; ++from)
    for (int n = 0; n < map.commands; ++n) {
      auto const epoch = static_cast<std::uint32_t>(n);
      program[static_cast<std::size_t>(from)].push_back(
          {.id = {.operation = static_cast<Operation>(rng.in(0, 2)),
                  .queue_pair = static_cast<std::uint8_t>(rng.in(0, queue_pairs - 1)),
                  .peer = static_cast<std::uint16_t>(rng.in(0, map.world - 1)),
                  .epoch = epoch},
           .local_offset = map.source(n),
           .remote_offset = map.row(from, n),
           .bytes = 16 * static_cast<std::uint64_t>(rng.in(0, 4)),
           .signal_offset = map.signal(from, n),
           .signal = exec::signal_word(epoch, 77)});
    }
  return program;
}

LoopbackOptions draw_options(Rng& rng, int world) {
  LoopbackOptions o{.queue_pairs = rng.in(1, 4), .depth = rng.of({1, 2, 5, 64, 4095}), .seed = rng.next()};
  if (rng.one_in(5)) return o;
  o.reorder = !rng.one_in(3);
  o.most_delay = microseconds(rng.of({0, 0, 30}));
  o.most_late = microseconds(rng.of({0, 0, 50}));
  o.early_one_in = rng.of({0, 1, 4});
  o.duplicate_one_in = rng.of({0, 1, 3});
  o.full_one_in = rng.of({0, 2, 5});
  o.latency = microseconds(rng.of({0, 0, 20}));
  o.gbps = rng.of({0.0, 0.0, 1.0});
  if (rng.one_in(3)) {
    o.vanishing_rank = rng.in(0, world - 1);
    o.vanishes_after = static_cast<std::uint64_t>(rng.in(0, 50));
    o.vanish_timeout = std::chrono::milliseconds(2);
  }
  return o;
}

//! What one rank brings.
template <class Fabric>
struct Rank {
  std::vector<Ring> rings;
  std::unique_ptr<Watched<Fabric>> watched;
  std::unique_ptr<fabric::proxy::Pump<Watched<Fabric>>> pump;
  std::vector<Fault> faults;
  std::vector<std::uint32_t> pushed;  // by ring
  int next = 0;                       // command
};

template <Order Promise>
class Program {
 public:
  using Fabric = fabric::Loopback<Promise>;

  explicit Program(std::uint64_t seed)
      : seed_(seed),
        rng_(seed),
        map_{.world = rng_.in(2, 8), .commands = rng_.in(20, 80)},
        options_(draw_options(rng_, map_.world)),
        world_(map_.world, map_.bytes(), options_),
        program_(draw_program(map_, options_.queue_pairs, rng_)),
        ranks_(static_cast<std::size_t>(map_.world)),
        shown_(ranks_.size() * ranks_.size() * static_cast<std::size_t>(map_.commands), false) {
    int const rings = rng_.in(1, 3);
    for (int r = 0; r < map_.world; ++r) {
      Rank<Fabric>& rank = ranks_[static_cast<std::size_t>(r)];
      for (int n = 0; n < map_.commands; ++n)
        for (std::uint64_t at = 0; at < kRow; ++at) world_.arena(r)[map_.source(n) + at] = byte_of(seed, r, n, at);
      std::vector<fabric::CommandReader> readers;
      for (int i = 0; i < rings; ++i) {
        rank.pushed.push_back(0u - static_cast<std::uint32_t>(rng_.in(0, 40)));
        rank.rings.push_back(Ring::create(rng_.of({1, 2, 8, 64}), rank.pushed.back()).value());
        readers.push_back(rank.rings.back().reader());
      }
      rank.watched = std::make_unique<Watched<Fabric>>(world_.end(r), rings);
      rank.pump = std::make_unique<fabric::proxy::Pump<Watched<Fabric>>>(*rank.watched, std::move(readers),
                                                                         [&rank](const Fault& fault) {
                                                                           rank.faults.push_back(fault);
                                                                           rank.watched->forbid(fault.id.peer);
                                                                         });
    }
  }

  //! Says what was wrong.
  std::string run() {
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (bool done = false; !done;) {
      if (std::chrono::steady_clock::now() > deadline) return "it does not end";
      int const r = rng_.in(0, map_.world - 1);
      Rank<Fabric>& rank = ranks_[static_cast<std::size_t>(r)];
      for (int n = rng_.in(0, 6); n > 0; --n) push(rank, r);
      (void)rank.pump->step();
      if (std::string wrong = look_at_signals(r); !wrong.empty()) return wrong;
      done = std::all_of(ranks_.begin(), ranks_.end(),
                         [&](const Rank<Fabric>& each) { return each.next == map_.commands && each.pump->idle(); });
    }
    // What completed early may still be on its way, and so may duplicates.
    for (auto const end = std::chrono::steady_clock::now() + microseconds(options_.prompt() ? 0 : 300);;) {
      for (int i = 0; i < 60; ++i)
        for (Rank<Fabric>& rank : ranks_) (void)rank.pump->step();
      if (std::chrono::steady_clock::now() > end) break;
    }
    if (std::string wrong = look_at_ranks(); !wrong.empty()) return wrong;
    return look_at_bytes();
  }

  //! How often what should be met was met.
  std::uint64_t duplicates = 0, refusals = 0, dropped = 0, faults = 0;

 private:
  void push(Rank<Fabric>& rank, int r) {
    if (rank.next == map_.commands) return;
    auto const ring = static_cast<std::size_t>(rank.next) % rank.rings.size();
    const fabric::CommandRingRef& ref = rank.rings[ring].ref();
    if (rank.pushed[ring] - static_cast<std::uint32_t>(*ref.tail) >= ref.capacity) return;
    exec::host::BlockState state;
    exec::host::Context context(state, 0, 1, 0, 1, false);
    auto const pushed = ref.push(context, program_[static_cast<std::size_t>(r)][static_cast<std::size_t>(rank.next)],
                                 {.timeout_ns = 1'000'000'000});
    REQUIRE(pushed.wait.end == exec::WaitEnd::arrived);
    REQUIRE(pushed.sequence == rank.pushed[ring]++);
    ++rank.next;
  }

  [[nodiscard]] const WorkRequest& command(int from, int n) const {
    return program_[static_cast<std::size_t>(from)][static_cast<std::size_t>(n)];
  }
  [[nodiscard]] bool lost(int from, int n) const {
    return options_.vanishing_rank >= 0 &&
           (from == options_.vanishing_rank || command(from, n).id.peer == options_.vanishing_rank);
  }
  [[nodiscard]] bool row_is_there(int from, int n) const {
    const WorkRequest& c = command(from, n);
    if (c.id.operation == Operation::signal) return true;
    const std::byte* row = world_.arena(c.id.peer) + c.remote_offset;
    for (std::uint64_t at = 0; at < c.bytes; ++at)
      if (row[at] != byte_of(seed_, from, n, at)) return false;
    return true;
  }
  [[nodiscard]] bool signal_is_there(int from, int n) const {
    const WorkRequest& c = command(from, n);
    return c.id.operation == Operation::put || world_.word(c.id.peer, c.signal_offset) == c.signal;
  }

  //! A signal of `from` that shows for the first time promises something.
  std::string look_at_signals(int from) {
    std::size_t const rings = ranks_[0].rings.size();
    for (int n = 0; n < map_.commands; ++n) {
      const WorkRequest& c = command(from, n);
      auto shown = shown_[static_cast<std::size_t>(from * map_.commands + n)];
      if (c.id.operation == Operation::put || shown || !signal_is_there(from, n)) continue;
      shown_[static_cast<std::size_t>(from * map_.commands + n)] = true;
      if (c.id.operation == Operation::put_signal && !row_is_there(from, n)) return "a put_signal before its bytes";
      for (int before = n - 1; Promise == Order::in_queue_pair && before >= 0; --before) {
        const WorkRequest& b = command(from, before);
        bool const ordered = b.id.peer == c.id.peer && b.id.queue_pair == c.id.queue_pair &&
                             static_cast<std::size_t>(n - before) % rings == 0;
        if (ordered && !(row_is_there(from, before) && signal_is_there(from, before))) return "a signal out of order";
      }
    }
    return "";
  }

  std::string look_at_ranks() {
    for (int r = 0; r < map_.world; ++r) {
      const Rank<Fabric>& rank = ranks_[static_cast<std::size_t>(r)];
      const fabric::ProxyCounters& c = rank.pump->counters();
      std::string const who = "rank " + std::to_string(r) + ": ";
      if (!rank.watched->complaint().empty()) return who + rank.watched->complaint();
      if (rank.watched->outstanding() != 0 || rank.pump->unfinished() != 0) return who + "something never ended";
      if (c.commands.load() != static_cast<std::uint64_t>(map_.commands)) return who + "a command was not read";
      if (c.ended.load() != c.requests.load()) return who + "a request ended twice or never";
      if (c.ended.load() + c.dropped.load() != c.commands.load()) return who + "a command was lost";
      if (c.duplicates.load() != rank.watched->duplicates()) return who + "duplicates are miscounted";
      std::uint64_t messages = 0, errors = 0, bytes = 0, expected = 0;
      for (int peer = 0; peer < map_.world; ++peer) {
        messages += world_.end(r).counters(peer).messages.load();
        errors += world_.end(r).counters(peer).errors.load();
        bytes += world_.end(r).counters(peer).bytes.load();
        bool const may_fail =
            options_.vanishing_rank >= 0 && (peer == options_.vanishing_rank || r == options_.vanishing_rank);
        if (!may_fail && !rank.pump->status(peer).ok()) return who + "a fault of one that is there";
      }
      for (int n = 0; n < map_.commands; ++n)
        if (command(r, n).id.operation != Operation::signal) expected += command(r, n).bytes;
      if (messages != c.requests.load()) return who + "the fabric counted other requests";
      if (options_.vanishing_rank < 0 && (bytes != expected || errors != 0)) return who + "other bytes were counted";
      for (const Fault& fault : rank.faults) {
        Status const status = rank.pump->status(fault.id.peer);
        if (status.error().peer != fault.id.peer || status.error().expected != fault.id.epoch ||
            status.message().find(std::string("\"") + name(fault.id.operation) + " of epoch " +
                                  std::to_string(fault.id.epoch)) == std::string::npos)
          return who + "a fault that names something else: " + status.message();
        if (command(r, static_cast<int>(fault.id.epoch)).id.peer != fault.id.peer)
          return who + "another request's fault";
        for (const Fault& other : rank.faults)
          if (&other != &fault && other.id.peer == fault.id.peer) return who + "a fault told twice";
      }
      duplicates += c.duplicates.load(), refusals += c.refusals.load(), dropped += c.dropped.load();
      faults += rank.faults.size();
    }
    return "";
  }

  //! The arenas as they must be, but for what a vanished rank sent or was to get.
  std::string look_at_bytes() const {
    for (int at = 0; at < map_.world; ++at) {
      std::vector<std::byte> expected(map_.bytes(), std::byte{0});
      std::vector<bool> open(map_.bytes(), false);
      for (int n = 0; n < map_.commands; ++n)
        for (std::uint64_t i = 0; i < kRow; ++i) expected[map_.source(n) + i] = byte_of(seed_, at, n, i);
      for (int from = 0; from < map_.world; ++from)
        for (int n = 0; n < map_.commands; ++n) {
          const WorkRequest& c = command(from, n);
          if (c.id.peer != at) continue;
          if (c.id.operation != Operation::signal)
            for (std::uint64_t i = 0; i < c.bytes; ++i) {
              expected[c.remote_offset + i] = byte_of(seed_, from, n, i);
              open[c.remote_offset + i] = lost(from, n);
            }
          if (c.id.operation != Operation::put)
            for (std::uint64_t i = 0; i < 8; ++i) {
              expected[c.signal_offset + i] = static_cast<std::byte>(c.signal >> (8 * i));
              open[c.signal_offset + i] = lost(from, n);
            }
        }
      for (std::uint64_t i = 0; i < map_.bytes(); ++i)
        if (world_.arena(at)[i] != expected[i] && !(open[i] && world_.arena(at)[i] == std::byte{0}))
          return "rank " + std::to_string(at) + ": byte " + std::to_string(i) + " is wrong";
    }
    return "";
  }

  std::uint64_t seed_;
  Rng rng_;
  Map map_;
  LoopbackOptions options_;
  LoopbackWorld<Promise> world_;
  std::vector<std::vector<WorkRequest>> program_;
  std::vector<Rank<Fabric>> ranks_;
  std::vector<bool> shown_;
};

}  // namespace

TEST_CASE("random programs over random networks") {
  std::uint64_t const first = env_number("MORI_EP_TEST_SEED", 1);
  std::uint64_t duplicates = 0, refusals = 0, dropped = 0, faults = 0;
  auto const run = [&](auto program) {
    REQUIRE(program->run() == "");
    duplicates += program->duplicates, refusals += program->refusals;
    dropped += program->dropped, faults += program->faults;
  };
  for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(scaled(150, 40)); ++seed) {
    INFO("MORI_EP_TEST_SEED=" << seed);
    run(std::make_unique<Program<Order::none>>(seed));
    run(std::make_unique<Program<Order::in_queue_pair>>(seed));
  }
  // The programs met what they are for.
  REQUIRE(duplicates > 100);
  REQUIRE(refusals > 100);
  REQUIRE(dropped > 10);
  REQUIRE(faults > 10);
}

TEST_CASE("a command that names no peer or queue pair ends and harms nobody") {
  LoopbackWorld<Order::none> world(2, 4096, {});
  auto ring = Ring::create(4).value();
  Watched watched(world.end(0), 1);
  fabric::proxy::Pump pump(watched, {ring.reader()}, nullptr);
  exec::host::BlockState state;
  exec::host::Context context(state, 0, 1, 0, 1, false);
  for (auto const& id : {fabric::WorkId{.operation = Operation::signal, .peer = 2},
                         fabric::WorkId{.operation = Operation::signal, .queue_pair = 1, .peer = 1}}) {
    (void)ring.ref().push(context, {.id = id, .signal = 5}, {.timeout_ns = 1'000'000'000});
    REQUIRE(pump.step());
    REQUIRE(pump.idle());
  }
  REQUIRE(pump.counters().dropped.load() == 2);
  REQUIRE(world.word(1, 0) == 0);
}

}  // namespace mori_ep::test
