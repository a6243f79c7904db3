// SPDX-License-Identifier: MIT
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "mori_ep/comm/thread_bootstrap.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using comm::ThreadBootstrap;
using comm::ThreadHub;
using std::chrono::milliseconds;

namespace {
template <class F>
void on_ranks(const std::shared_ptr<ThreadHub>& hub, const std::vector<int>& ranks, F&& f) {
  std::vector<std::thread> threads;
  for (int rank : ranks)
    threads.emplace_back([&, rank] {
      ThreadBootstrap self(hub, rank);
      f(self);
    });
  for (auto& thread : threads) thread.join();
}
}  // namespace

TEST_CASE("all_gather gives every rank all bytes in rank order, round after round") {
  for (int world : {1, 2, 3, 24}) {
    auto const hub = std::make_shared<ThreadHub>(world, std::chrono::seconds(60));
    std::vector<int> all;
    for (int r = 0; r < world; ++r) all.push_back(r);
    std::atomic<int> wrong{0};
    on_ranks(hub, all, [&](ThreadBootstrap& self) {
      for (int round = 0; round < 30; ++round) {
        std::uint64_t const mine = mix(static_cast<std::uint64_t>(self.rank()), static_cast<std::uint64_t>(round));
        std::vector<std::uint64_t> got(static_cast<std::size_t>(world));
        if (!self.all_gather(&mine, got.data(), sizeof(mine)).ok()) ++wrong;
        for (int r = 0; r < world; ++r)
          if (got[static_cast<std::size_t>(r)] != mix(static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(round)))
            ++wrong;
        if (round % 7 == 0 && !self.barrier().ok()) ++wrong;
      }
    });
    REQUIRE(wrong.load() == 0);
  }
}

TEST_CASE("a barrier orders plain memory") {
  auto const hub = std::make_shared<ThreadHub>(4, std::chrono::seconds(60));
  std::vector<int> values(4, 0);
  std::atomic<int> wrong{0};
  on_ranks(hub, {0, 1, 2, 3}, [&](ThreadBootstrap& self) {
    for (int round = 1; round <= 50; ++round) {
      values[static_cast<std::size_t>(self.rank())] = round;
      (void)self.barrier();
      for (int v : values) wrong += v == round ? 0 : 1;
      (void)self.barrier();
    }
  });
  REQUIRE(wrong.load() == 0);
}

TEST_CASE("a rank that does not come is named on every rank that came") {
  auto const hub = std::make_shared<ThreadHub>(4, milliseconds(200));
  std::atomic<int> named{0};
  auto const begin = std::chrono::steady_clock::now();
  on_ranks(hub, {0, 1, 3}, [&](ThreadBootstrap& self) {
    Status const s = self.barrier();
    if (s.code() == Errc::missing_rank && s.error().peer == 2 && s.error().rank == self.rank() &&
        s.message().find("peer rank 2") != std::string::npos)
      ++named;
  });
  REQUIRE(named.load() == 3);
  REQUIRE(std::chrono::steady_clock::now() - begin < milliseconds(1200));

  // Who comes late is told so at once, and the round after works for all.
  std::atomic<int> ok{0};
  on_ranks(hub, {2}, [&](ThreadBootstrap& self) { named += self.barrier().code() == Errc::missing_rank ? 1 : 0; });
  REQUIRE(named.load() == 4);
  on_ranks(hub, {0, 1, 2, 3}, [&](ThreadBootstrap& self) { ok += self.barrier().ok() ? 1 : 0; });
  REQUIRE(ok.load() == 4);
}

TEST_CASE("different calls in one round are told apart") {
  auto const hub = std::make_shared<ThreadHub>(3, std::chrono::seconds(60));
  std::atomic<int> named{0};
  on_ranks(hub, {0, 1, 2}, [&](ThreadBootstrap& self) {
    std::uint32_t const mine = 1;
    std::uint32_t got[6];
    Status const s = self.all_gather(&mine, got, self.rank() == 1 ? 2 : 4);
    int const other = self.rank() == 1 ? 0 : 1;
    if (s.code() == Errc::protocol_mismatch && s.error().peer == other) ++named;
  });
  REQUIRE(named.load() == 3);
}

}  // namespace mori_ep::test
