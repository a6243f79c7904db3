// SPDX-License-Identifier: MIT
// Signals and waits: what they order, when a wait gives up, and that waiters leave the cores to others.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "mori_ep/exec/host/host.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using exec::signal_word;
using exec::WaitEnd;
using exec::WaitLimits;
using exec::WaitResult;
using exec::host::Context;
using exec::host::Stream;
using Clock = std::chrono::steady_clock;

namespace {
//! The words that a wait looks at besides its own.
struct Faults {
  std::uint32_t failed = 0;
  std::uint64_t peers[6] = {};
  [[nodiscard]] WaitLimits limits(std::int64_t timeout_ns, int peer = -1) {
    return {timeout_ns, &failed, peers, 3, peer};
  }
};
}  // namespace

TEST_CASE("a wait acquires what was written before the signal") {
  std::uint64_t word = signal_word(9, 0);
  int payload = 0;  // plain
  WaitResult got;
  Faults faults;
  Stream waiter, signaller;
  waiter.launch({}, [&](Context& ctx) {
    got = ctx.wait(&word, 10, faults.limits(60'000'000'000));
    payload *= 2;
  });
  signaller.launch({}, [&](Context& ctx) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    payload = 21;
    ctx.signal(&word, 10, 77);
  });
  waiter.synchronize();
  signaller.synchronize();
  REQUIRE(got.end == WaitEnd::arrived);
  REQUIRE(exec::signal_payload(got.word) == 77);
  REQUIRE(payload == 42);
}

TEST_CASE("a wait ends at its deadline and says what it saw") {
  std::uint64_t word = signal_word(4, 1);
  Faults faults;
  WaitResult got;
  Stream stream;
  auto const begin = Clock::now();
  stream.launch({}, [&](Context& ctx) { got = ctx.wait(&word, 5, faults.limits(100'000'000)); });
  stream.synchronize();
  auto const took = Clock::now() - begin;
  REQUIRE(got.end == WaitEnd::expired);
  REQUIRE(got.word == signal_word(4, 1));
  REQUIRE(took >= std::chrono::milliseconds(100));
  REQUIRE(took < std::chrono::milliseconds(1100));
}

TEST_CASE("a wait ends early when it cannot be met any more") {
  Faults faults;
  WaitResult got;
  Stream stream;
  std::uint64_t word = signal_word(6, 0);
  auto const wait_for = [&](std::uint32_t epoch) {
    stream.launch({}, [&, epoch](Context& ctx) { got = ctx.wait(&word, epoch, faults.limits(60'000'000'000)); });
    stream.synchronize();
    return got.end;
  };
  REQUIRE(wait_for(5) == WaitEnd::out_of_step);
  word = signal_word(0, 0);
  REQUIRE(wait_for(0xffffffffu) == WaitEnd::out_of_step);  // 0 comes after the wrap
  faults.peers[2] = 1;
  REQUIRE(wait_for(1) == WaitEnd::peer_fault);
  REQUIRE(got.fault_rank == 2);
  faults.failed = 1;
  REQUIRE(wait_for(1) == WaitEnd::stopped);
  word = signal_word(1, 5);
  REQUIRE(wait_for(1) == WaitEnd::arrived);  // what has come has come
}

TEST_CASE("a wait that has lasted half its time says for whom, until it is over") {
  Faults faults;
  Stream stream;
  std::uint64_t word = 0;
  WaitResult got;
  stream.launch({}, [&](Context& ctx) { got = ctx.wait(&word, 1, faults.limits(2'000'000'000, 1)); });
  while (std::atomic_ref(faults.peers[3 + 1]).load() == 0) std::this_thread::yield();
  std::atomic_ref(word).store(signal_word(1, 0));
  stream.synchronize();
  REQUIRE(got.end == WaitEnd::arrived);
  REQUIRE(faults.peers[3 + 1] == 0);
  stream.launch({}, [&](Context& ctx) { got = ctx.wait(&word, 2, faults.limits(50'000'000, 2)); });
  stream.synchronize();
  REQUIRE(got.end == WaitEnd::expired);
  REQUIRE(faults.peers[3 + 2] == 1);
}

TEST_CASE("only the first claims") {
  std::uint32_t flag = 0;
  std::atomic<int> firsts{0};
  Stream stream;
  stream.launch({.blocks = 8}, [&](Context& ctx) { firsts += ctx.claim(&flag) ? 1 : 0; });
  stream.synchronize();
  REQUIRE(firsts.load() == 1);
}

TEST_CASE("blocks tally together") {
  std::uint32_t word = 0;
  Stream stream;
  stream.launch({.blocks = 3, .warps = 2}, [&](Context& ctx) {
    for (int i = 0; i < 1000; ++i) ctx.tally(&word, 2);
  });
  stream.synchronize();
  REQUIRE(word == 3 * 2 * 1000 * 2);
}

TEST_CASE("a warp of one lane votes for itself") {
  std::uint64_t yes = 0, no = 7;
  std::uint32_t word = 8;
  Stream stream;
  stream.launch({}, [&](Context& ctx) {
    yes = ctx.ballot(true);
    no = ctx.ballot(false);
    ctx.warp_or(&word, 5);
    ctx.warp_or(&word, 1);
  });
  stream.synchronize();
  REQUIRE(yes == 1);
  REQUIRE(no == 0);
  REQUIRE(word == 13);
}

TEST_CASE("pieces are packed one behind the other, wherever each is read") {
  for (int words : {0, 1, 3, 8, 40})
    for (int pieces : {0, 1, 5}) {
      std::vector<std::uint16_t> from(static_cast<std::size_t>(5 * 50)), to(static_cast<std::size_t>(5 * 40 + 1), 7);
      for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::uint16_t>(100 + i);
      Stream stream;
      stream.launch({}, [&](Context& ctx) {
        ctx.pack(to.data(), pieces, words, [&](std::int32_t i) { return from.data() + 50 * (4 - i); });
      });
      stream.synchronize();
      int wrong = 0;
      for (int i = 0; i < static_cast<int>(to.size()); ++i) {
        int const want = i < pieces * words ? 100 + 50 * (4 - i / words) + i % words : 7;
        wrong += to[static_cast<std::size_t>(i)] == want ? 0 : 1;
      }
      REQUIRE(wrong == 0);
    }
}

TEST_CASE("published words carry what was written before them") {
  std::uint64_t word = 0;
  int payload = 0;
  Stream a, b;
  a.launch({}, [&](Context& ctx) {
    payload = 5;
    ctx.publish(&word, 1);
  });
  int seen = 0;
  b.launch({}, [&](Context& ctx) {
    while (ctx.peek(&word) == 0) std::this_thread::yield();
    seen = payload;
  });
  a.synchronize();
  b.synchronize();
  REQUIRE(seen == 5);
}

TEST_CASE("sixty-four waiters leave the core to the one they wait for") {
  constexpr int kWaiters = 64;
  Faults faults;
  std::vector<std::uint64_t> words(kWaiters, signal_word(0, 0));
  std::atomic<int> arrived{0};
  std::vector<Stream> streams(kWaiters);
  for (int w = 0; w < kWaiters; ++w)
    streams[static_cast<std::size_t>(w)].launch({}, [&, w](Context& ctx) {
      if (ctx.wait(&words[static_cast<std::size_t>(w)], 1, faults.limits(120'000'000'000)).end == WaitEnd::arrived)
        ++arrived;
    });
  // The work that everybody waits for: long enough that spinning waiters would take nearly all of it away.
  Stream worker;
  std::uint64_t sum = 0;
  worker.launch({}, [&](Context& ctx) {
    for (std::uint64_t i = 0; i < 20'000'000; ++i) sum += mix(i) & 1;
    for (auto& word : words) ctx.signal(&word, 1, 0);
  });
  for (auto& stream : streams) stream.synchronize();
  worker.synchronize();
  REQUIRE(arrived.load() == kWaiters);
  REQUIRE(sum > 9'900'000);
}

}  // namespace mori_ep::test
