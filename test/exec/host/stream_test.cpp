// SPDX-License-Identifier: MIT
// Streams run their work in order and asynchronously, events order streams, all warps of a launch are there at once.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "mori_ep/exec/host/host.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using exec::host::Context;
using exec::host::Event;
using exec::host::Stream;

TEST_CASE("work runs in order and synchronize waits for all of it") {
  std::vector<int> seen;
  Stream stream;
  // More than the queue holds, so that enqueueing blocks and goes on.
  int const n = static_cast<int>(3 * Stream::kQueueDepth) + 7;
  for (int i = 0; i < n; ++i) stream.submit([&seen, i] { seen.push_back(i); });
  stream.synchronize();
  REQUIRE(seen.size() == static_cast<std::size_t>(n));
  bool ordered = true;
  for (int i = 0; i < n; ++i) ordered = ordered && seen[static_cast<std::size_t>(i)] == i;
  REQUIRE(ordered);
  stream.synchronize();
}

TEST_CASE("enqueueing does not wait for the work") {
  std::atomic<bool> go{false}, ran{false};
  Stream stream;
  stream.submit([&go] {
    while (!go.load()) std::this_thread::yield();
  });
  stream.submit([&ran] { ran = true; });
  REQUIRE_FALSE(ran.load());  // submit came back although the work before it cannot end yet
  go = true;
  stream.synchronize();
  REQUIRE(ran.load());
}

TEST_CASE("the destructor finishes pending work") {
  std::atomic<int> ran{0};
  {
    Stream stream;
    for (int i = 0; i < 100; ++i) stream.submit([&ran] { ++ran; });
    stream.launch({.blocks = 2, .warps = 2}, [&ran](Context&) { ++ran; });
  }
  REQUIRE(ran.load() == 104);
}

TEST_CASE("an event orders work of two streams and times it") {
  int value = 0;  // plain: the event alone orders the accesses
  Stream first, second;
  Event begin, written, read;
  REQUIRE(written.done());
  first.record(begin);
  first.submit([&value] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    value = 1;
  });
  first.record(written);
  second.wait(written);
  second.submit([&value] { value = 10 * value + 2; });
  second.record(read);
  read.synchronize();
  REQUIRE(read.done());
  REQUIRE(value == 12);
  REQUIRE(Event::elapsed_us(begin, written) >= 4900.0);
  REQUIRE(Event::elapsed_us(written, read) >= 0.0);

  // Recorded again, it stands for the later point.
  second.submit([&value] { value = 7; });
  second.record(written);
  first.wait(written);
  first.submit([&value] { ++value; });
  first.synchronize();
  REQUIRE(value == 8);
}

TEST_CASE("every warp of a launch runs once with its own place") {
  Stream stream;
  for (auto [blocks, warps] : {std::pair{1, 1}, {1, 4}, {5, 1}, {3, 2}, {16, 3}, {2, 2}}) {
    std::vector<std::atomic<int>> ran(static_cast<std::size_t>(blocks * warps));
    std::atomic<int> wrong{0};
    stream.launch({.blocks = blocks, .warps = warps}, [&ran, &wrong, b = blocks, w = warps](Context& ctx) {
      if (ctx.blocks() != b || ctx.warps() != w || ctx.lane() != 0 || Context::lanes != 1) ++wrong;
      ++ran[static_cast<std::size_t>(ctx.block() * w + ctx.warp())];
    });
    stream.synchronize();
    REQUIRE(wrong.load() == 0);
    for (auto& r : ran) REQUIRE(r.load() == 1);
  }
}

TEST_CASE("all warps of a launch are resident together") {
  Stream stream;
  for (auto [blocks, warps] : {std::pair{8, 4}, {33, 1}, {1, 33}, {2, 1}}) {
    std::atomic<int> here{0}, met{0};
    int const all = blocks * warps;
    stream.launch({.blocks = blocks, .warps = warps}, [&here, &met, all](Context&) {
      ++here;
      for (int i = 0; here.load() != all && i < 1000000; ++i) std::this_thread::yield();
      if (here.load() == all) ++met;
    });
    stream.synchronize();
    REQUIRE(met.load() == all);
  }
}

TEST_CASE("a block shares scratch and meets at its barrier") {
  constexpr int kBlocks = 3, kWarps = 4, kRounds = scaled(200, 50);
  std::vector<std::uint32_t> sums(kBlocks, 0);
  std::atomic<int> wrong{0};
  Stream stream;
  stream.launch({.blocks = kBlocks, .warps = kWarps, .shared_bytes = 256}, [&](Context& ctx) {
    auto* counter = ctx.shared<std::uint32_t>(2);
    auto* slots = ctx.shared<double>(kWarps);
    if (reinterpret_cast<std::uintptr_t>(slots) % alignof(double) != 0) ++wrong;
    if (ctx.warp() == 0) counter[0] = counter[1] = 0;
    ctx.block_sync();
    for (int round = 0; round < kRounds; ++round) {
      slots[ctx.warp()] = round + ctx.warp();
      ctx.shared_add(counter, 1);
      ctx.block_sync();
      // Plain reads of what the other warps wrote plainly: the barrier orders them.
      for (int w = 0; w < kWarps; ++w)
        if (slots[w] != round + w) ++wrong;
      if (counter[0] != static_cast<std::uint32_t>(kWarps * (round + 1))) ++wrong;
      ctx.block_sync();
    }
    if (ctx.warp() == 0) sums[static_cast<std::size_t>(ctx.block())] = counter[0];
  });
  stream.synchronize();
  REQUIRE(wrong.load() == 0);
  for (std::uint32_t sum : sums) REQUIRE(sum == kWarps * kRounds);
}

TEST_CASE("the last block to arrive sees what all the others wrote, launch after launch") {
  constexpr int kBlocks = 5;
  std::uint32_t counter = 0;
  std::vector<int> written(kBlocks, 0);
  int sum = 0, lasts = 0, expected = 0;
  Stream stream;
  for (int round = 1; round <= scaled(300, 60); ++round) {
    expected += kBlocks * round;
    stream.launch({.blocks = kBlocks}, [&, round](Context& ctx) {
      written[static_cast<std::size_t>(ctx.block())] = round;
      if (!ctx.arrive(&counter)) return;
      ++lasts;
      for (int w : written) sum += w;
    });
  }
  stream.synchronize();
  REQUIRE(counter == 0);
  REQUIRE(lasts == scaled(300, 60));
  REQUIRE(sum == expected);
}

TEST_CASE("the scratch of a block grows with what launches ask for") {
  Stream stream;
  int wrong = 0;
  for (std::size_t bytes : {64u, 100000u, 128u, 300000u}) {
    for (int blocks : {1, 4}) {
      stream.launch({.blocks = blocks, .shared_bytes = bytes}, [&wrong, bytes](Context& ctx) {
        auto* scratch = ctx.shared<std::uint8_t>(bytes);
        std::fill(scratch, scratch + bytes, static_cast<std::uint8_t>(ctx.block()));
        ctx.block_sync();
        if (ctx.block() != 0) return;
        for (std::size_t i = 0; i < bytes; ++i) wrong += scratch[i] == 0 ? 0 : 1;
      });
    }
  }
  stream.synchronize();
  REQUIRE(wrong == 0);
}

TEST_CASE("memory comes zeroed and can be given back") {
  for (std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{3} << 20}) {
    std::byte* memory = exec::Host::allocate(bytes);
    REQUIRE(memory != nullptr);
    REQUIRE(reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
    bool zero = true;
    for (std::size_t i = 0; i < bytes; ++i) zero = zero && memory[i] == std::byte{0};
    REQUIRE(zero);
    exec::Host::release(memory, bytes);
  }
  REQUIRE(exec::Host::allocate(std::size_t{1} << 60) == nullptr);
}

TEST_CASE("the machine's defaults can be resident") {
  auto const residency = exec::Host::residency<int>([](int) { return std::size_t{0}; });
  int const resident = residency.blocks[exec::Host::default_warps()];
  REQUIRE(resident == exec::Host::Stream::kMaxThreads);
  for (int ranks : {1, 2, 8, 64}) {
    REQUIRE(exec::Host::default_blocks(resident, ranks) >= 1);
    REQUIRE(exec::Host::default_blocks(resident, ranks) <= resident);
  }
}

}  // namespace mori_ep::test
