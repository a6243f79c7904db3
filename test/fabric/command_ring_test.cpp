// SPDX-License-Identifier: MIT
// Many writers and one reader: nothing lost, nothing twice, each writer's commands in order, across every wrap.
#include <atomic>
#include <chrono>
#include <map>
#include <thread>
#include <vector>

#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/fabric/command_ring.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using exec::WaitEnd;
using exec::WaitLimits;
using exec::host::Context;
using fabric::Command;
using fabric::CommandReader;
using fabric::CommandRingRef;
using fabric::Pushed;
using fabric::WorkRequest;
using Ring = fabric::CommandRing<exec::Host>;
using exec::host::Stream;

namespace {
struct Faults {
  std::uint32_t failed = 0;
  std::uint64_t peers[2] = {};
  [[nodiscard]] WaitLimits limits(std::chrono::nanoseconds timeout = std::chrono::seconds(60)) {
    return {timeout.count(), &failed, peers, 1, -1};
  }
};

//! A context of a launch of one thread, for pushes from the test itself.
struct Alone {
  exec::host::BlockState state;
  Context context{state, 0, 1, 0, 1, false};
};

//! The n-th command of a writer.
WorkRequest request_of(int writer, int n) {
  return {.id = {.peer = static_cast<std::uint16_t>(writer), .epoch = static_cast<std::uint32_t>(n)},
          .local_offset = static_cast<std::uint64_t>(n) * 16};
}

//! Reads `total` commands, holding slots back for a while now and then, and says what was wrong.
std::string drain(CommandReader reader, int writers, int total, Rng rng) {
  std::map<int, std::uint32_t> expected;
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  for (int n = 0; n < total;) {
    if (std::chrono::steady_clock::now() > deadline) return "only " + std::to_string(n) + " commands came";
    const Command* const command = reader.next();
    if (command != nullptr) {
      ++n;
      WorkRequest const request = command->request();
      if (request.id.peer >= writers) return "no writer's command";
      if (request.id.epoch != expected[request.id.peer]++) return "out of order, lost or twice";
      if (request.local_offset != request.id.epoch * 16ull) return "torn";
    } else {
      std::this_thread::yield();
    }
    std::uint32_t const held = reader.position() - reader.oldest();
    if (held > 0 && (command == nullptr || n == total || rng.one_in(3)))
      reader.free(1 + static_cast<std::uint32_t>(rng.next() % held));
  }
  reader.free(reader.position() - reader.oldest());
  return reader.published() ? "more than was pushed" : "";
}
}  // namespace

TEST_CASE("the capacity of a ring is a power of two that its numbers can carry") {
  for (std::int64_t capacity : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{3}, 2 * Ring::kMostCapacity}) {
    auto const ring = Ring::create(capacity);
    REQUIRE(ring.error().code == Errc::invalid_argument);
    REQUIRE(ring.error().value == capacity);
    REQUIRE(ring.error().limit == Ring::kMostCapacity);
  }
  for (std::int64_t capacity : {std::int64_t{1}, std::int64_t{2}, Ring::kMostCapacity})
    REQUIRE(Ring::create(capacity).ok());
}

TEST_CASE("a full ring makes writers wait, and no longer than allowed") {
  // Numbers that wrap in this test, and one that equals what zeroed memory would say.
  for (std::uint32_t start : {0u, 1u, 0xfffffffdu, 0xffffffffu, 0x7ffffffeu}) {
    auto ring = Ring::create(4, start).value();
    CommandReader reader = ring.reader();
    Faults faults;
    Alone alone;
    REQUIRE(reader.next() == nullptr);
    for (std::uint32_t n = 0; n < 4; ++n) {
      Pushed const pushed = ring.ref().push(alone.context, request_of(0, static_cast<int>(n)), faults.limits());
      REQUIRE(pushed.wait.end == WaitEnd::arrived);
      REQUIRE(pushed.sequence == start + n);
    }
    REQUIRE(reader.next() != nullptr);
    REQUIRE(reader.position() == start + 1);
    // Read is not freed: one more command has no place.
    Alone impatient;
    Pushed const full =
        ring.ref().push(impatient.context, request_of(0, 4), faults.limits(std::chrono::milliseconds(20)));
    REQUIRE(full.wait.end == WaitEnd::expired);
    // The ring has a hole at its fifth command now: the sixth is not read.
    for (int n = 1; n < 4; ++n) REQUIRE(reader.next() != nullptr);
    reader.free(4);
    Alone another;
    REQUIRE(ring.ref().push(another.context, request_of(0, 5), faults.limits()).wait.end == WaitEnd::arrived);
    REQUIRE(reader.next() == nullptr);
    REQUIRE_FALSE(reader.published());

    REQUIRE(ring.restart(start - 1).ok());
    reader = ring.reader();
    for (int n = 0; n < 11; ++n) {
      REQUIRE(reader.next() == nullptr);
      REQUIRE(ring.ref().push(another.context, request_of(0, n), faults.limits()).sequence ==
              start - 1 + static_cast<std::uint32_t>(n));
      const Command* const command = reader.next();
      REQUIRE(command != nullptr);
      REQUIRE(command->request().id.epoch == static_cast<std::uint32_t>(n));
      reader.free(1);
    }
  }
}

TEST_CASE("a writer that waits for room stops for a fault") {
  auto ring = Ring::create(1).value();
  Faults faults;
  Alone alone;
  REQUIRE(ring.ref().push(alone.context, {}, faults.limits()).wait.end == WaitEnd::arrived);
  faults.peers[0] = 1;
  Pushed const pushed = ring.ref().push(alone.context, {}, faults.limits());
  REQUIRE(pushed.wait.end == WaitEnd::peer_fault);
  REQUIRE(pushed.wait.fault_rank == 0);
}

TEST_CASE("the end of a command can be waited for, long after it too") {
  auto ring = Ring::create(4, 0xfffffffeu).value();
  CommandReader reader = ring.reader();
  Faults faults;
  auto const push = [&] {
    Alone alone;
    return ring.ref().push(alone.context, {}, faults.limits()).sequence;
  };
  auto const wait = [&](std::uint32_t sequence) {
    Alone alone;
    return ring.ref().await_end(alone.context, sequence, faults.limits(std::chrono::milliseconds(10))).end;
  };
  std::uint32_t const first = push(), second = push();
  REQUIRE(wait(first) == WaitEnd::expired);
  (void)reader.next(), (void)reader.next();
  REQUIRE(wait(first) == WaitEnd::expired);
  reader.free(1);
  REQUIRE(wait(first) == WaitEnd::arrived);
  REQUIRE(wait(second) == WaitEnd::expired);
  reader.free(1);
  for (int i = 0; i < 100; ++i) {
    (void)push();
    (void)reader.next();
    reader.free(1);
  }
  REQUIRE(wait(first) == WaitEnd::arrived);
  REQUIRE(wait(second) == WaitEnd::arrived);

  // From another thread, while slots are used again and again.
  std::uint32_t const third = push();
  WaitEnd got = WaitEnd::stopped;
  std::thread waiter([&] {
    Alone alone;
    got = ring.ref().await_end(alone.context, third, faults.limits()).end;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  (void)reader.next();
  reader.free(1);
  waiter.join();
  REQUIRE(got == WaitEnd::arrived);
}

TEST_CASE("threads and kernels write one ring") {
  std::uint64_t const seed = env_number("MORI_EP_TEST_SEED", 1);
  INFO("MORI_EP_TEST_SEED=" << seed);
  struct Case {
    int capacity, threads, blocks, warps;
  };
  for (Case const c : {Case{1, 3, 2, 1}, Case{2, 0, 3, 2}, Case{16, 2, 4, 2}, Case{1024, 4, 1, 4}}) {
    INFO("capacity " << c.capacity << ", " << c.threads << " threads, " << c.blocks << " blocks of " << c.warps);
    // Writers of a small ring wait for each other's turns. The numbers wrap half way.
    int const each = c.capacity < 16 ? scaled(150, 100) : scaled(3000, 600);
    int const writers = c.threads + c.blocks * c.warps, total = writers * each;
    auto ring = Ring::create(c.capacity, 0u - static_cast<std::uint32_t>(total / 2)).value();
    CommandRingRef const ref = ring.ref();
    Faults faults;
    std::atomic<int> failed{0};
    auto const write = [&failed, &faults, ref, each](Context& ctx, int writer) {
      for (int n = 0; n < each; ++n)
        if (ref.push(ctx, request_of(writer, n), faults.limits()).wait.end != WaitEnd::arrived) ++failed;
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < c.threads; ++t)
      threads.emplace_back([&write, t] {
        Alone alone;
        write(alone.context, t);
      });
    Stream stream;
    stream.launch({.blocks = c.blocks, .warps = c.warps},
                  [&write, c](Context& ctx) { write(ctx, c.threads + ctx.block() * ctx.warps() + ctx.warp()); });
    REQUIRE(drain(ring.reader(), writers, total, Rng(mix(seed, static_cast<std::uint64_t>(c.capacity)))) == "");
    for (auto& thread : threads) thread.join();
    stream.synchronize();
    REQUIRE(failed.load() == 0);
  }
}

TEST_CASE("a command publishes what other warps of its block wrote") {
  constexpr int kWarps = 3, kRounds = scaled(300, 60);
  auto ring = Ring::create(2).value();
  CommandRingRef const ref = ring.ref();
  CommandReader reader = ring.reader();
  Faults faults;
  std::vector<int> data(kWarps, 0);  // plain: the command alone orders the accesses
  Stream stream;
  stream.launch({.blocks = 1, .warps = kWarps}, [&faults, &data, ref](Context& ctx) {
    for (int round = 1; round <= kRounds; ++round) {
      data[static_cast<std::size_t>(ctx.warp())] = round;
      ctx.flush_stores();
      ctx.block_sync();
      if (ctx.warp() == 0) {
        Pushed const pushed = ref.push(ctx, {}, faults.limits());
        (void)ref.await_end(ctx, pushed.sequence, faults.limits());
      }
      ctx.block_sync();
    }
  });
  int wrong = 0;
  for (int round = 1; round <= kRounds; ++round) {
    while (reader.next() == nullptr) std::this_thread::yield();
    for (int seen : data) wrong += seen == round ? 0 : 1;
    reader.free(1);
  }
  stream.synchronize();
  REQUIRE(wrong == 0);
}

}  // namespace mori_ep::test
