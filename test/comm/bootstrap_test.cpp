// SPDX-License-Identifier: MIT
// What every Bootstrap must do, for each of them.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <linux/sockios.h>
#include <sys/ioctl.h>

#include "mori_ep/comm/mesh_bootstrap.hpp"
#include "mori_ep/comm/thread_bootstrap.hpp"
#include "support/catch.hpp"
#include "support/joining.hpp"
#include "support/process_world.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using comm::all_ranks;
using comm::Bootstrap;
using comm::Communicator;
using std::chrono::milliseconds;

namespace {

using Ends = std::vector<std::shared_ptr<Bootstrap>>;

Ends threads(int world, std::chrono::nanoseconds timeout) {
  auto const hub = std::make_shared<comm::ThreadHub>(world, timeout);
  Ends ends;
  for (int r = 0; r < world; ++r) ends.push_back(std::make_shared<comm::ThreadBootstrap>(hub, r));
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
      // The error names the lowest that called differently, whoever came first.
      if (self.rank() == 0) std::this_thread::sleep_for(milliseconds(20));
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

namespace {

//! Rank 0 of two, and the bare other end.
std::pair<std::shared_ptr<Bootstrap>, comm::Fd> rank_and_socket(std::chrono::nanoseconds timeout,
                                                                std::uint64_t most_held = comm::kMostHeld) {
  int pair[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
  std::vector<comm::Link> links(2);
  links[1].socket = comm::Fd(pair[0]);
  return {std::make_shared<comm::MeshBootstrap>(0, std::move(links), timeout, most_held), comm::Fd(pair[1])};
}
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

}  // namespace

TEST_CASE("a peer that sends without end keeps nobody past the deadline, and is let go when it fills the memory") {
  for (auto const kind : {comm::FrameKind::hello, comm::FrameKind::data}) {
    std::uint64_t const most_held = kind == comm::FrameKind::data ? std::uint64_t{1} << 20 : comm::kMostHeld;
    auto const [self, socket] = rank_and_socket(milliseconds(kind == comm::FrameKind::data ? 60000 : 300), most_held);
    std::vector<std::byte> flood;
    auto const frame = comm::write_frame({.kind = kind, .group = 1, .round = 1}, {});
    while (flood.size() < 65536) flood.insert(flood.end(), frame.begin(), frame.end());
    std::atomic<bool> done{false};
    auto const begin = std::chrono::steady_clock::now();
    std::thread other([&, &to = socket] {  // ends by itself, so that the test does if the call does not
      while (!done && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20)) {
        std::size_t sent = 0;
        while (sent < flood.size() && !done) {
          auto const n = ::send(to.get(), flood.data() + sent, flood.size() - sent, MSG_NOSIGNAL);
          if (n < 0 && errno == EPIPE) return;
          sent += n > 0 ? static_cast<std::size_t>(n) : 0;
        }
      }
    });
    Status const s = barrier(*self, {0, 1});
    auto const took = std::chrono::steady_clock::now() - begin;
    done = true;
    other.join();
    CHECK(s.code() == Errc::missing_rank);
    CHECK(s.error().peer == 1);
    CHECK(took < std::chrono::seconds(10));
  }
}

TEST_CASE("a call whose time is up leaves what a peer has sent where it is") {
  std::byte const host[] = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
  auto const listener = comm::listen_at(comm::SocketAddress::from(AF_INET, host, 0), 1);
  comm::Fd const peer = connected_to(*comm::SocketAddress::of(*listener));
  std::vector<comm::Link> links(2);
  links[1].socket = comm::accept_one(*listener).socket;
  int const mine = links[1].socket.get();
  REQUIRE((peer.open() && links[1].open()));
  std::vector<std::byte> const more(std::size_t{8} << 20);
  auto const header = comm::write_frame({.kind = comm::FrameKind::data, .group = 1, .round = 1}, more);
  std::size_t sent = 0;
  for (int idle = 0; idle < 20;) {  // as much as the system holds
    auto const n = ::send(peer.get(), header.data() + sent, header.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    sent += n > 0 ? static_cast<std::size_t>(n) : 0;
    idle = n > 0 ? 0 : idle + 1;
    if (n <= 0) std::this_thread::sleep_for(milliseconds(1));
  }
  if (sent < std::size_t{2} << 20) {
    WARN("skipped: this system's sockets hold only " << sent << " bytes");
    return;
  }
  comm::MeshBootstrap self(0, std::move(links), std::chrono::nanoseconds(0));
  CHECK(barrier(self, {0, 1}).code() == Errc::missing_rank);
  int unread = 0, on_the_way = 0;
  REQUIRE(::ioctl(mine, FIONREAD, &unread) == 0);
  REQUIRE(::ioctl(peer.get(), SIOCOUTQ, &on_the_way) == 0);
  CHECK(static_cast<std::size_t>(unread) + static_cast<std::size_t>(on_the_way) > sent / 4);
}

TEST_CASE("a peer that reads nothing any more costs time, but no work") {
  auto const [self, socket] = rank_and_socket(milliseconds(500));
  REQUIRE(::shutdown(socket.get(), SHUT_RD) == 0);
  double const before = cpu_seconds();
  Status const s = barrier(*self, {0, 1});
  CHECK(s.code() == Errc::missing_rank);
  CHECK(cpu_seconds() - before < 0.25);
}

TEST_CASE("what a peer announces takes no memory before it comes") {
  auto const pages = [] {
    std::size_t n = 0;
    std::ifstream("/proc/self/statm") >> n;
    return n;
  };
  comm::ByteWriter header;
  header.put(comm::FrameHeader::kMagic)
      .put(static_cast<std::uint16_t>(comm::FrameKind::data))
      .put(std::uint16_t{0})
      .put(comm::kMostPayload)
      .put(std::uint64_t{1})
      .put(std::uint64_t{1});
  auto const bytes = header.take();
  std::vector<comm::FrameReader> readers(4);
  std::size_t const before = pages();
  for (auto& reader : readers) {
    REQUIRE(reader.add(bytes));
    REQUIRE(reader.add(std::vector<std::byte>(1000)));
    REQUIRE(reader.held() == bytes.size() + 1000);
    REQUIRE(reader.frames().empty());
  }
  REQUIRE((pages() - before) * 4096 < comm::kMostPayload / 2);
  comm::ByteWriter more;
  more.put(comm::FrameHeader::kMagic).put(std::uint16_t{4}).put(std::uint16_t{0}).put(comm::kMostPayload + 1);
  more.put(std::uint64_t{1}).put(std::uint64_t{1});
  comm::FrameReader reader;
  REQUIRE(!reader.add(more.take()));
  REQUIRE(!reader.add({}));
}

TEST_CASE("frames are taken in order, by choice, and held until then") {
  comm::FrameReader reader;
  for (std::uint64_t round = 0; round < 6; ++round)
    REQUIRE(
        reader.add(comm::write_frame({.kind = comm::FrameKind::data, .round = round}, std::vector<std::byte>(round))));
  auto const full = reader.held();
  REQUIRE(full == 6 * sizeof(comm::FrameReader::Frame) + 15);
  std::vector<std::uint64_t> shown;
  reader.take([&](const comm::FrameReader::Frame& f) {
    shown.push_back(f.header.round);
    return f.header.round % 2 == 1;
  });
  REQUIRE(shown == std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5});
  REQUIRE(reader.held() == full - 3 * sizeof(comm::FrameReader::Frame) - 9);
  for (std::uint64_t round : {0, 2, 4}) {
    auto const frame = reader.pop();
    REQUIRE(frame->header.round == round);
    REQUIRE(frame->payload.size() == round);
  }
  REQUIRE(!reader.pop());
  REQUIRE(reader.held() == 0);
}

TEST_CASE("a process that is stopped is missed in time, and joins the others when it goes on") {
  SharedArray<std::atomic<int>> steps(4);
  ProcessWorld world(3, 0, milliseconds(400));
  world.start([&](Communicator& comm) -> Status {
    auto const rank = static_cast<std::size_t>(comm.rank());
    auto const wait_for = [&](int value) {
      while (steps[3] < value) std::this_thread::sleep_for(milliseconds(1));
    };
    steps[rank] = 1;
    wait_for(1);
    if (rank == 2) wait_for(2);  // stopped in here
    Status const first = comm.barrier();
    if (first.code() != Errc::missing_rank) return Error{.code = Errc::invalid_config, .field = "first barrier"};
    if (rank != 2 && first.error().peer != 2) return Error{.code = Errc::invalid_config, .field = "peer"};
    steps[rank] = 2;
    wait_for(3);
    return comm.barrier();
  });
  auto const all_at = [&](int value, std::size_t ranks) {
    auto const begin = std::chrono::steady_clock::now();
    for (std::size_t r = 0; r < ranks; ++r)
      while (steps[r] < value && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20))
        std::this_thread::sleep_for(milliseconds(1));
  };
  all_at(1, 3);
  ::kill(world.pid(2), SIGSTOP);
  steps[3] = 1;
  all_at(2, 2);
  CHECK(steps[2] == 1);
  ::kill(world.pid(2), SIGCONT);
  steps[3] = 2;
  all_at(2, 3);
  steps[3] = 3;
  for (int r = 0; r < 3; ++r) {
    auto const& outcome = world.wait(r);
    CHECK(Status(outcome.error).message() == "ok");
    CHECK(outcome.done == 1);
  }
}

TEST_CASE("a process that sleeps through the end of a call that the others gave up fails it, too, and stays in step") {
  constexpr int kWorld = 3, kSleeper = 2;
  struct Seen {
    std::int32_t entered = 0, first = -1, second = -1;
    std::int32_t values[kWorld] = {};
  };
  SharedArray<Seen> seen(kWorld);
  ProcessWorld world(kWorld, 0, milliseconds(500));
  world.start([&](Communicator& comm) -> Status {
    Seen& mine = seen[static_cast<std::size_t>(comm.rank())];
    if (comm.rank() != kSleeper) std::this_thread::sleep_for(milliseconds(250));  // it waits for these, and is stopped
    std::atomic_ref(mine.entered).store(1);
    std::int32_t values[kWorld] = {};
    for (std::int32_t step = 1; step <= 2; ++step) {
      Status const s = comm.all_gather(&step, values, sizeof(step));
      (step == 1 ? mine.first : mine.second) = static_cast<std::int32_t>(s.code());
      if (step == 2) std::copy(values, values + kWorld, mine.values);
    }
    return {};
  });
  while (std::atomic_ref(seen[kSleeper].entered).load() == 0) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(100));
  ::kill(world.pid(kSleeper), SIGSTOP);
  std::this_thread::sleep_for(milliseconds(850));  // the others have given up, and are in their next call
  ::kill(world.pid(kSleeper), SIGCONT);
  for (int r = 0; r < kWorld; ++r) {
    CHECK(world.wait(r).status == 0);
    const Seen& s = seen[static_cast<std::size_t>(r)];
    INFO("rank " << r);
    CHECK(s.first == static_cast<std::int32_t>(Errc::missing_rank));
    CHECK(s.second == 0);
    for (std::int32_t value : s.values) CHECK(value == 2);
  }
}

TEST_CASE("threads of one rank meet two groups at the same time, and one that waits holds up no other") {
  Ends ends = mesh(3, milliseconds(1500));
  std::atomic<int> met{0};
  std::atomic<bool> missed{false};
  std::thread waits([&] {  // rank 1 does not come
    missed = barrier(*ends[0], {0, 1}).code() == Errc::missing_rank;
  });
  std::this_thread::sleep_for(milliseconds(50));
  auto const begin = std::chrono::steady_clock::now();
  on_ranks(ends, {0, 2}, [&](Bootstrap& self) {
    for (int i = 0; i < 5; ++i) met += barrier(self, {0, 2}).ok() ? 1 : 0;
  });
  CHECK(std::chrono::steady_clock::now() - begin < milliseconds(1000));
  waits.join();
  CHECK(met == 10);
  CHECK(missed);
}

}  // namespace mori_ep::test
