// SPDX-License-Identifier: MIT
// What every Bootstrap must do, for each of them.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <sys/socket.h>

#include "mori_ep/comm/mesh_bootstrap.hpp"
#include "mori_ep/comm/thread_bootstrap.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using comm::all_ranks;
using comm::Bootstrap;
using std::chrono::milliseconds;

namespace {

using Ends = std::vector<std::shared_ptr<Bootstrap>>;

Ends threads(int world, std::chrono::nanoseconds timeout) {
  auto const hub = std::make_shared<comm::ThreadHub>(world, timeout);
  Ends ends;
  for (int r = 0; r < world; ++r) ends.push_back(std::make_shared<comm::ThreadBootstrap>(hub, r));
  return ends;
}
Ends mesh(int world, std::chrono::nanoseconds timeout) {
  auto const w = static_cast<std::size_t>(world);
  std::vector<std::vector<comm::Link>> links(w);
  for (auto& row : links) row.resize(w);
  for (std::size_t a = 0; a < w; ++a)
    for (std::size_t b = a + 1; b < w; ++b) {
      int pair[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
      links[a][b].socket = comm::Fd(pair[0]);
      links[b][a].socket = comm::Fd(pair[1]);
    }
  Ends ends;
  for (int r = 0; r < world; ++r)
    ends.push_back(std::make_shared<comm::MeshBootstrap>(r, std::move(links[static_cast<std::size_t>(r)]), timeout));
  return ends;
}

const std::function<Ends(int, std::chrono::nanoseconds)> kModels[] = {threads, mesh};

template <class F>
void on_ranks(Ends& ends, const std::vector<int>& ranks, F&& f) {
  std::vector<std::thread> running;
  for (int rank : ranks) running.emplace_back([&, rank] { f(*ends[static_cast<std::size_t>(rank)]); });
  for (auto& thread : running) thread.join();
}
Status barrier(Bootstrap& self, const std::vector<int>& members) {
  return self.all_gather(members, nullptr, nullptr, 0);
}

}  // namespace

TEST_CASE("all_gather gives every rank all bytes in rank order, round after round") {
  for (auto const& model : kModels)
    for (int world : {1, 2, 3, 24}) {
      Ends ends = model(world, std::chrono::seconds(60));
      auto const all = all_ranks(world);
      std::atomic<int> wrong{0};
      on_ranks(ends, all, [&](Bootstrap& self) {
        for (int round = 0; round < 30; ++round) {
          std::uint64_t const mine = mix(static_cast<std::uint64_t>(self.rank()), static_cast<std::uint64_t>(round));
          std::vector<std::uint64_t> got(static_cast<std::size_t>(world));
          if (!self.all_gather(all, &mine, got.data(), sizeof(mine)).ok()) ++wrong;
          for (int r = 0; r < world; ++r)
            if (got[static_cast<std::size_t>(r)] !=
                mix(static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(round)))
              ++wrong;
          if (round % 7 == 0 && !barrier(self, all).ok()) ++wrong;
        }
      });
      REQUIRE(wrong.load() == 0);
    }
}

TEST_CASE("more bytes than any socket holds go through, from all to all") {
  for (auto const& model : kModels) {
    Ends ends = model(4, std::chrono::seconds(60));
    auto const all = all_ranks(4);
    std::size_t const bytes = (std::size_t{5} << 20) + 3;
    std::atomic<int> wrong{0};
    on_ranks(ends, all, [&](Bootstrap& self) {
      std::vector<std::byte> const mine(bytes, static_cast<std::byte>(self.rank() + 1));
      std::vector<std::byte> got(4 * bytes);
      if (!self.all_gather(all, mine.data(), got.data(), bytes).ok()) ++wrong;
      for (std::size_t i = 0; i < got.size(); ++i) wrong += got[i] == static_cast<std::byte>(i / bytes + 1) ? 0 : 1;
    });
    REQUIRE(wrong.load() == 0);
  }
}

TEST_CASE("groups meet by themselves, also ones that share ranks") {
  for (auto const& model : kModels) {
    Ends ends = model(6, std::chrono::seconds(60));
    std::vector<int> const groups[] = {{0, 1, 2}, {3, 4, 5}, {1, 3, 5}, {0, 1, 2, 3, 4, 5}, {2}};
    std::atomic<int> wrong{0};
    on_ranks(ends, all_ranks(6), [&](Bootstrap& self) {
      for (int round = 0; round < 20; ++round)
        for (const auto& group : groups) {
          if (std::find(group.begin(), group.end(), self.rank()) == group.end()) continue;
          int const mine = 100 * round + self.rank();
          std::vector<int> got(group.size());
          if (!self.all_gather(group, &mine, got.data(), sizeof(mine)).ok()) ++wrong;
          for (std::size_t i = 0; i < group.size(); ++i) wrong += got[i] == 100 * round + group[i] ? 0 : 1;
        }
    });
    REQUIRE(wrong.load() == 0);
  }
}

TEST_CASE("members that are none are refused") {
  for (auto const& model : kModels) {
    Ends ends = model(3, std::chrono::seconds(60));
    for (std::vector<int> const& members : {std::vector<int>{0, 0}, {1, 0}, {0, 3}, {-1, 0}, {1, 2}, {}}) {
      Status const s = barrier(*ends[0], members);
      REQUIRE(s.code() == Errc::invalid_argument);
      REQUIRE(s.message().find("member of a group is") != std::string::npos);
    }
  }
}

TEST_CASE("a barrier orders plain memory") {
  for (auto const& model : kModels) {
    Ends ends = model(4, std::chrono::seconds(60));
    auto const all = all_ranks(4);
    std::vector<std::atomic<int>> values(4);
    std::atomic<int> wrong{0};
    on_ranks(ends, all, [&](Bootstrap& self) {
      for (int round = 1; round <= 50; ++round) {
        values[static_cast<std::size_t>(self.rank())].store(round, std::memory_order_relaxed);
        (void)barrier(self, all);
        for (auto& v : values) wrong += v.load(std::memory_order_relaxed) == round ? 0 : 1;
        (void)barrier(self, all);
      }
    });
    REQUIRE(wrong.load() == 0);
  }
}

TEST_CASE("ranks that do not come are named on every rank that came, and when they come late") {
  for (auto const& model : kModels) {
    Ends ends = model(5, milliseconds(300));
    auto const all = all_ranks(5);
    std::atomic<int> named{0};
    auto const begin = std::chrono::steady_clock::now();
    on_ranks(ends, {0, 1, 3}, [&](Bootstrap& self) {
      Status const s = barrier(self, all);
      if (s.code() == Errc::missing_rank && s.error().peer == 2 && s.error().rank == self.rank() &&
          s.message().find("no word from rank 2, 4") != std::string::npos)
        ++named;
    });
    REQUIRE(named.load() == 3);
    REQUIRE(std::chrono::steady_clock::now() - begin < milliseconds(1300));

    // Who comes late is told so at once, and the round after works for all.
    std::atomic<int> ok{0};
    on_ranks(ends, {2, 4}, [&](Bootstrap& self) { named += barrier(self, all).code() == Errc::missing_rank ? 1 : 0; });
    REQUIRE(named.load() == 5);
    REQUIRE(std::chrono::steady_clock::now() - begin < milliseconds(2000));
    on_ranks(ends, all, [&](Bootstrap& self) { ok += barrier(self, all).ok() ? 1 : 0; });
    REQUIRE(ok.load() == 5);
  }
}

TEST_CASE("a rank that missed several rounds joins the others in their next") {
  for (auto const& model : kModels) {
    Ends ends = model(3, milliseconds(100));
    auto const all = all_ranks(3);
    for (int i = 0; i < 3; ++i) on_ranks(ends, {0, 1}, [&](Bootstrap& self) { (void)barrier(self, all); });
    std::atomic<int> failed{0}, ok{0};
    on_ranks(ends, {2}, [&](Bootstrap& self) { failed += barrier(self, all).ok() ? 0 : 1; });
    REQUIRE(failed.load() == 1);
    for (int i = 0; i < 3; ++i) on_ranks(ends, all, [&](Bootstrap& self) { ok += barrier(self, all).ok() ? 1 : 0; });
    REQUIRE(ok.load() == 9);
  }
}

TEST_CASE("different calls in one round are told apart") {
  for (auto const& model : kModels) {
    Ends ends = model(3, std::chrono::seconds(60));
    auto const all = all_ranks(3);
    std::atomic<int> named{0};
    on_ranks(ends, all, [&](Bootstrap& self) {
      std::uint32_t const mine = 1;
      std::uint32_t got[6];
      Status const s = self.all_gather(all, &mine, got, self.rank() == 1 ? 2 : 4);
      int const other = self.rank() == 1 ? 0 : 1;
      if (s.code() == Errc::protocol_mismatch && s.error().peer == other) ++named;
    });
    REQUIRE(named.load() == 3);
  }
}

TEST_CASE("a process that has ended is missed at once, by the others for good, who can go on without it") {
  Ends ends = mesh(4, std::chrono::seconds(60));
  auto const all = all_ranks(4);
  auto const begin = std::chrono::steady_clock::now();
  ends[2].reset();
  std::atomic<int> named{0}, ok{0};
  on_ranks(ends, {0, 1, 3}, [&](Bootstrap& self) {
    for (int i = 0; i < 2; ++i) {
      Status const s = barrier(self, all);
      named += s.code() == Errc::missing_rank && s.error().peer == 2 ? 1 : 0;
    }
    ok += barrier(self, {0, 1, 3}).ok() ? 1 : 0;
  });
  REQUIRE(named.load() == 6);
  REQUIRE(ok.load() == 3);
  REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
}

}  // namespace mori_ep::test
