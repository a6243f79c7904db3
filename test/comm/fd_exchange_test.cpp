// SPDX-License-Identifier: MIT
// Memory between processes: strangers at the sockets that pass it, limits that are too low for it, and what cannot be
// shared.
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sched.h>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>

#include "mori_ep/comm/fd_exchange.hpp"
#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/joining.hpp"
#include "support/process_world.hpp"
#include "support/processes.hpp"

namespace mori_ep::test {

using comm::Fd;
using comm::FdExchange;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, exec::Host>;
constexpr EpDispatchCombineConfig kConfig{
    .hidden_dim = 64, .max_num_inp_token_per_rank = 8, .num_experts_per_rank = 2, .num_experts_per_token = 2};

using Clock = std::chrono::steady_clock;

//! Passes a file that says the rank, and looks for those of all others.
Status exchange_ranks(const Communicator& comm) {
  Fd const mine(::memfd_create("mori_ep_test", MFD_CLOEXEC));
  auto const rank = static_cast<std::uint8_t>(comm.rank());
  if (::pwrite(mine.get(), &rank, 1, 0) != 1) return comm::system_error("pwrite");
  std::vector<int> const members = comm::all_ranks(comm.world());
  auto const got = FdExchange(comm, members).run(mine);
  if (!got.ok()) return got.status();
  for (int r = 0; r < comm.world(); ++r) {
    std::uint8_t said = 0xff;
    const Fd& fd = (*got)[static_cast<std::size_t>(r)];
    if (r == comm.rank() ? fd.open() : ::pread(fd.get(), &said, 1, 0) != 1 || said != r)
      return Error{.code = Errc::invalid_config, .rank = comm.rank(), .field = "byte of a rank's file", .value = said};
  }
  return {};
}

//! The abstract name that a process listens at, once it does; else nothing, in time.
std::string mailbox_of(pid_t pid) {
  for (auto const begin = Clock::now(); Clock::now() - begin < seconds(10);) {
    for (const std::string& name : listening(sockets_of(pid)))
      if (name.rfind("@mori_ep.", 0) == 0) return name.substr(1);
    std::this_thread::sleep_for(milliseconds(1));
  }
  return {};
}
Fd connected_to_name(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  auto const length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) socket.close();
  return socket;
}
//! Has a rank passed anything to this stranger?
bool got_anything(const Fd& stranger) {
  std::byte one;
  return ::recv(stranger.get(), &one, 1, MSG_DONTWAIT) > 0;
}

void limit(decltype(RLIMIT_NOFILE) resource, rlim_t value) {
  rlimit const both{.rlim_cur = value, .rlim_max = value};
  (void)::setrlimit(resource, &both);
}
int next_descriptor() {
  int const fd = ::dup(0);
  ::close(fd);
  return fd;
}

}  // namespace

TEST_CASE("descriptors go to every rank, and strangers at the sockets get none and stop nobody") {
  constexpr int kWorld = 3;
  SharedArray<std::atomic<int>> go(1);
  ProcessWorld world(kWorld, 0, seconds(20));
  world.start([&](Communicator& comm) -> Status {
    // The last rank comes when strangers fill the queues of all others, who would connect to each other.
    while (comm.rank() == kWorld - 1 && go[0] == 0) std::this_thread::sleep_for(milliseconds(1));
    return exchange_ranks(comm);
  });
  std::vector<Fd> strangers;
  for (int rank = 0; rank + 1 < kWorld; ++rank) {
    std::string const name = mailbox_of(world.pid(rank));
    CHECK(name.size() == 40);
    for (int i = 0;; ++i) {
      Fd stranger = connected_to_name(name);
      if (!stranger.open()) break;  // the queue is full
      if (i % 4 == 1) say(stranger, std::string(16, 'x'));
      if (i % 4 == 2) say(stranger, std::string(500, '\0'));
      if (i % 4 == 3) (void)::shutdown(stranger.get(), SHUT_WR);
      strangers.push_back(std::move(stranger));
    }
  }
  CHECK(strangers.size() >= 2 * kWorld);
  auto const begin = Clock::now();
  go[0] = 1;
  for (int rank = 0; rank < kWorld; ++rank) {
    auto const& outcome = world.wait(rank);
    CHECK(Status(outcome.error).message() == "ok");
    CHECK((outcome.done == 1 && *outcome.thrown == '\0'));
  }
  CHECK(Clock::now() - begin < seconds(10));
  for (const Fd& stranger : strangers) CHECK(!got_anything(stranger));
}

TEST_CASE("a rank that ends before it passes its memory is missed at once") {
  auto const begin = Clock::now();
  ProcessWorld world(3);
  world.start([&](Communicator& comm) -> Status {
    if (comm.rank() == 1) std::_Exit(3);
    return exchange_ranks(comm);
  });
  for (int rank : {0, 2}) {
    Status const s = world.wait(rank).error;
    CHECK(s.code() == Errc::missing_rank);
    CHECK(s.error().peer == 1);
  }
  CHECK(Clock::now() - begin < seconds(20));
}

TEST_CASE("descriptors that run out anywhere in create are an error of all ranks, soon") {
  auto const begin = Clock::now();
  bool refused_by_name = false, created = false;
  for (rlim_t more = 0; more < 12; ++more) {
    ProcessWorld world(3, 0, seconds(1));
    world.start([&](Communicator& comm) -> Status {
      if (comm.rank() == 1) limit(RLIMIT_NOFILE, static_cast<rlim_t>(next_descriptor()) + more);
      return Ep::create(comm, kConfig).status();
    });
    std::vector<Error> errors;
    for (int rank = 0; rank < 3; ++rank) errors.push_back(world.wait(rank).error);
    for (const Error& e : errors) {
      INFO("room for " << more << ": " << e.message());
      CHECK(e.code == errors[0].code);
      CHECK((e.code == Errc::ok || e.rank == 1));
      CHECK((e.code == Errc::ok || e.code == Errc::system_error || e.code == Errc::out_of_memory));
    }
    created = created || errors[0].code == Errc::ok;
    refused_by_name = refused_by_name || errors[1].message().find("ulimit -n") != std::string::npos;
    if (created) break;
  }
  CHECK(created);
  CHECK(refused_by_name);
  CHECK(Clock::now() - begin < seconds(30));
}

TEST_CASE("an arena that a rank cannot map is an error of all ranks, at once") {
  if (kSanitized) {
    WARN("skipped: a sanitizer's own memory leaves no address space limit to set");
    return;
  }
  EpDispatchCombineConfig config = kConfig;
  config.hidden_dim = 1024;
  config.max_num_inp_token_per_rank = 4096;
  std::size_t const bytes = Ep::footprint(config, 3).value().bytes;
  REQUIRE(bytes > (std::size_t{32} << 20));
  auto const begin = Clock::now();
  ProcessWorld world(3);
  world.start([&](Communicator& comm) -> Status {
    if (comm.rank() == 2) {  // room for its own arena and one more
      std::size_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      limit(RLIMIT_AS, pages * 4096 + 2 * bytes + bytes / 2);
    }
    return Ep::create(comm, config).status();
  });
  std::string const first = world.wait(0).error.message();
  INFO(first);
  CHECK(first.find("rank 2: out of memory in create: bytes of a peer's arena is " + std::to_string(bytes) +
                   ", peer rank 1.") != std::string::npos);
  CHECK(world.wait(1).error.message() == first);
  CHECK(world.wait(2).error.message() == first);
  CHECK(Clock::now() - begin < seconds(20));
}

TEST_CASE("a caller's memory without a descriptor is refused between processes, by name and on every rank") {
  ProcessWorld world(2);
  world.start([&](Communicator& comm) -> Status {
    std::size_t const bytes = Ep::footprint(kConfig, 2).value().bytes;
    std::byte* const memory = comm.rank() == 1 ? exec::Host::allocate(bytes) : nullptr;
    return Ep::create(comm, kConfig, {memory, memory == nullptr ? 0 : bytes}).status();
  });
  for (int rank = 0; rank < 2; ++rank) {
    std::string const said = world.wait(rank).error.message();
    INFO(said);
    CHECK(said.find(
              "rank 1: invalid argument in create: descriptor of the caller's memory is 0, limit 1, peer rank 0.") !=
          std::string::npos);
  }
}

TEST_CASE("ranks in different network namespaces are told apart, and told so") {
  auto root = comm::get_unique_id(loopback());
  REQUIRE(root.ok());
  comm::UniqueId const id = root->id();
  struct Outcome {
    char said[300] = "";
    int skipped = 0, nodes = 0, on_host = 0;
  };
  SharedArray<Outcome> outcomes(2);
  auto const rank_main = [&](int rank, Joined joined) {
    Outcome& mine = outcomes[static_cast<std::size_t>(rank)];
    // Connections that are there stay.
    if (rank == 1 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWNET) != 0) mine.skipped = 1;
    if (!joined.ok()) return;
    auto const comm = Communicator::create(*joined);
    std::string const said = comm.ok() ? Ep::create(*comm, kConfig).status().message() : comm.message();
    std::strncpy(mine.said, said.c_str(), sizeof(mine.said) - 1);
    if (!comm.ok()) return;
    mine.nodes = comm->nodes();
    mine.on_host = comm->ranks_on_host();
  };
  {
    Fork guest([&] {
      root = Error{.code = Errc::invalid_argument};
      rank_main(1, comm::join_tcp(id, 1, 2, loopback()));
    });
    Fork first([&] { rank_main(0, comm::join_tcp(std::move(*root), 2, loopback())); });
    root = Error{.code = Errc::invalid_argument};
    REQUIRE(first.wait() == 0);
    REQUIRE(guest.wait() == 0);
  }
  if (outcomes[1].skipped != 0) {
    WARN("skipped: this user may make no network namespace");
    return;
  }
  for (std::size_t r = 0; r < 2; ++r) {
    INFO(outcomes[r].said);
    CHECK(std::string(outcomes[r].said).find("invalid argument in create: hosts is 2, limit 1, peer rank 0.") !=
          std::string::npos);
    CHECK(outcomes[r].nodes == 2);
    CHECK(outcomes[r].on_host == 1);
  }
}

}  // namespace mori_ep::test
