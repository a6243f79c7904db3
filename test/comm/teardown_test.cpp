// SPDX-License-Identifier: MIT
// What is left when operators, worlds and processes are gone: nothing. And how long joining takes, which is printed.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/process_world.hpp"
#include "support/processes.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

namespace {

using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>;
constexpr int kTokens = 4, kHidden = 16;
constexpr EpDispatchCombineConfig kConfig{.hidden_dim = kHidden,
                                          .max_num_inp_token_per_rank = kTokens,
                                          .num_experts_per_rank = 1,
                                          .num_experts_per_token = 1};

//! Sends every token to the next rank and back; the rows must come back as they went.
Status round_trip(Ep& ep, const Communicator& comm) {
  std::vector<float> x(kTokens * kHidden, static_cast<float>(comm.rank() + 1)), y(x.size());
  std::vector<std::int32_t> const ids(kTokens, (comm.rank() + 1) % comm.world());
  exec::Host::Stream stream;
  auto got = ep.dispatch({.input = {x.data(), kTokens, kHidden}, .indices = {ids.data(), kTokens, 1}}, stream);
  if (!got.ok()) return got.status();
  Status const back =
      ep.combine(std::move(got->ticket), {.input = got->rows, .output = {y.data(), kTokens, kHidden}}, stream);
  stream.synchronize();
  if (!back.ok()) return back;
  if (Status s = ep.status(); !s.ok()) return s;
  return x == y ? Status() : Error{.code = Errc::invalid_config, .rank = comm.rank(), .field = "rows"};
}

//! A second world of the same processes, joined by an id that the first one carries.
Result<Communicator> joined_again(const Communicator& comm, const comm::TcpOptions& options) {
  Result<comm::TcpRoot> root = Error{.code = Errc::missing_rank};
  comm::UniqueId mine;
  if (comm.rank() == 0) {
    root = comm::get_unique_id(options);
    if (!root.ok()) return root.status();
    mine = root->id();
  }
  std::vector<comm::UniqueId> ids(static_cast<std::size_t>(comm.world()));
  if (Status s = comm.all_gather(&mine, ids.data(), sizeof(mine)); !s.ok()) return s;
  auto joined = comm.rank() == 0 ? comm::join_tcp(std::move(*root), comm.world(), options)
                                 : comm::join_tcp(ids[0], comm.rank(), comm.world(), options);
  if (!joined.ok()) return joined.status();
  return Communicator::create(std::move(*joined));
}

//! 100 operators of two worlds, at most five at a time; each rank ends them in an order of its own.
Status make_and_end(const Communicator& comm, const comm::TcpOptions& options) {
  auto second = joined_again(comm, options);
  if (!second.ok()) return second.status();
  Rng random(static_cast<std::uint64_t>(100 + comm.rank()));
  std::vector<Ep> live;
  for (int i = 0; i < 100; ++i) {
    auto ep = Ep::create(i % 2 == 0 ? comm : *second, kConfig);
    if (!ep.ok()) return ep.status();
    if (i % 10 == 3)
      if (Status s = round_trip(*ep, comm); !s.ok()) return s;
    live.push_back(std::move(*ep));
    if (live.size() == 5) live.erase(live.begin() + random.in(0, 4));
  }
  while (!live.empty()) live.erase(live.begin() + random.in(0, static_cast<int>(live.size()) - 1));
  return {};
}

//! Names in /dev/shm, where nothing of this library ever is.
std::set<std::string> shared_files() {
  std::set<std::string> names;
  std::error_code none;
  for (auto const& entry : std::filesystem::directory_iterator("/dev/shm", none))
    if (entry.path().filename().string().find("mori") != std::string::npos) names.insert(entry.path().string());
  return names;
}

//! Kills all processes at once, and looks for what is left of them.
void kill_all(const std::vector<pid_t>& pids, const std::function<void(std::size_t)>& reap, bool must_listen) {
  std::set<std::string> sockets;
  for (pid_t const pid : pids) sockets.merge(sockets_of(pid));
  CHECK(sockets.size() >= pids.size());
  CHECK(listening(sockets).empty() != must_listen);
  for (pid_t const pid : pids) ::kill(pid, SIGKILL);
  for (std::size_t i = 0; i < pids.size(); ++i) reap(i);
  CHECK(listening(sockets).empty());
  CHECK(shared_files().empty());
  for (pid_t const pid : pids) CHECK((::kill(pid, 0) != 0 && errno == ESRCH));
}

}  // namespace

TEST_CASE("100 operators of two worlds, ended in any order, leave no descriptor, mapping or thread") {
  constexpr int kWorld = 3;
  struct Numbers {
    Held before, after;
  };
  SharedArray<Numbers> numbers(kWorld);
  ProcessWorld world(kWorld);
  Status const s = world.run([&](Communicator& comm) -> Status {
    Numbers& mine = numbers[static_cast<std::size_t>(comm.rank())];
    std::thread([] {}).join();  // a sanitizer has a thread of its own from the first one on
    mine.before = Held::here();
    if (Status made = make_and_end(comm, world.loopback()); !made.ok()) return made;
    // The system may list a thread a little longer than it takes to join it.
    for (auto const begin = Clock::now(); Clock::now() - begin < seconds(2);)
      if ((mine.after = Held::here()) == mine.before) break;
    return comm.barrier();
  });
  REQUIRE(s.message() == "ok");
  for (std::size_t r = 0; r < kWorld; ++r) {
    INFO("rank " << r << " before: " << numbers[r].before.text() << "; after: " << numbers[r].after.text());
    CHECK(numbers[r].before.descriptors > 0);
    CHECK(numbers[r].before.threads > 0);
    CHECK(numbers[r].before == numbers[r].after);
  }
}

TEST_CASE("an operator holds mappings while it lives, and no descriptors") {
  SharedArray<Held> while_live(2);
  ProcessWorld world(2);
  Status const s = world.run([&](Communicator& comm) -> Status {
    Held const before = Held::here();
    auto const ep = Ep::create(comm, kConfig);
    Held& now = while_live[static_cast<std::size_t>(comm.rank())];
    now = Held::here();
    now.descriptors -= before.descriptors;
    now.threads -= before.threads;
    return ep.ok() ? comm.barrier() : ep.status();
  });
  REQUIRE(s.message() == "ok");
  for (std::size_t r = 0; r < 2; ++r)
    CHECK(while_live[r] == Held{.descriptors = 0, .threads = 0, .shared_mappings = 4});
}

TEST_CASE("all ranks killed in the middle of a join leave nothing") {
  constexpr int kWorld = 8;
  ProcessWorld world(kWorld);  // of whom two will not come
  auto root = comm::get_unique_id(world.loopback());
  REQUIRE(root.ok());
  comm::UniqueId const id = root->id();
  std::vector<pid_t> pids;
  for (int rank = kWorld - 3; rank >= 0; --rank) {
    pids.push_back(::fork());
    REQUIRE(pids.back() >= 0);
    if (pids.back() != 0) continue;
    if (rank != 0) root = Error{.code = Errc::invalid_argument};
    (void)(rank == 0 ? comm::join_tcp(std::move(*root), kWorld, world.loopback())
                     : comm::join_tcp(id, rank, kWorld, world.loopback()));
    std::_Exit(0);
  }
  root = Error{.code = Errc::invalid_argument};
  // All have greeted rank 0: each of them listens, too.
  std::set<std::string> listeners;
  for (auto const begin = Clock::now(); listeners.size() < pids.size() && Clock::now() - begin < seconds(10);) {
    std::set<std::string> sockets;
    for (pid_t const pid : pids) sockets.merge(sockets_of(pid));
    listeners = listening(sockets);
    std::this_thread::sleep_for(milliseconds(2));
  }
  CHECK(listeners.size() == pids.size());
  kill_all(
      pids, [&](std::size_t i) { ::waitpid(pids[i], nullptr, 0); }, true);
  CHECK(!comm::TcpRoot::answers(id));
}

TEST_CASE("all ranks killed in the middle of traffic leave nothing") {
  constexpr int kWorld = 4;
  SharedArray<std::atomic<int>> trips(kWorld);
  ProcessWorld world(kWorld);
  world.start([&](Communicator& comm) -> Status {
    auto ep = Ep::create(comm, kConfig);
    if (!ep.ok()) return ep.status();
    for (;;) {
      if (Status s = round_trip(*ep, comm); !s.ok()) return s;
      ++trips[static_cast<std::size_t>(comm.rank())];
    }
  });
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kWorld; ++rank) {
    pids.push_back(world.pid(rank));
    auto const begin = Clock::now();
    while (trips[static_cast<std::size_t>(rank)] < 3 && Clock::now() - begin < seconds(20))
      std::this_thread::sleep_for(milliseconds(1));
    CHECK(trips[static_cast<std::size_t>(rank)] >= 3);
  }
  kill_all(
      pids, [&](std::size_t i) { CHECK(world.wait(static_cast<int>(i)).done == 0); }, false);
}

TEST_CASE("how long processes take to join is printed") {
  for (int processes : {8, 64}) {
    if (processes == 64 && kSanitized) {
      std::printf("join of 64 processes: not measured under a sanitizer\n");
      continue;
    }
    SharedArray<std::int64_t> joined_us(static_cast<std::size_t>(processes));
    auto const begin = Clock::now();
    ProcessWorld world(processes);
    Status const s = world.run([&](Communicator& comm) {
      joined_us[static_cast<std::size_t>(comm.rank())] =
          std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
      return comm.barrier();
    });
    REQUIRE(s.message() == "ok");
    std::int64_t last = 0;
    for (int rank = 0; rank < processes; ++rank) last = std::max(last, joined_us[static_cast<std::size_t>(rank)]);
    std::printf("join of %d processes on %u cores: %.3f s from the first fork to the last rank's communicator\n",
                processes, std::thread::hardware_concurrency(), static_cast<double>(last) * 1e-6);
    std::fflush(stdout);
  }
}

}  // namespace mori_ep::test
