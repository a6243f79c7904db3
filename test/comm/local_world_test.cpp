// SPDX-License-Identifier: MIT
#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "mori_ep/comm/local_world.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {

using comm::Communicator;
using comm::LocalWorld;

TEST_CASE("run starts every rank once in a thread of its own") {
  for (int world : {1, 2, 8, 65}) {
    std::vector<std::thread::id> threads(static_cast<std::size_t>(world));
    Status const s = LocalWorld(world).run([&](Communicator& comm) -> Status {
      threads[static_cast<std::size_t>(comm.rank())] = std::this_thread::get_id();
      return comm.world() == world && comm.ranks_on_host() == world ? comm.barrier()
                                                                    : Error{.code = Errc::invalid_config};
    });
    REQUIRE(s.ok());
    REQUIRE(std::set<std::thread::id>(threads.begin(), threads.end()).size() == static_cast<std::size_t>(world));
  }
  REQUIRE(LocalWorld(0).world() == 1);
}

TEST_CASE("run gives the lowest failing rank's status") {
  Status const s = LocalWorld(4).run([&](Communicator& comm) -> Status {
    if (comm.rank() == 0) return {};
    return Error{.code = Errc::invalid_argument, .rank = comm.rank()};
  });
  REQUIRE(s.code() == Errc::invalid_argument);
  REQUIRE(s.error().rank == 1);
  // A rank that failed by itself comes before those that failed because of it.
  for (Errc const code : {Errc::peer_fault, Errc::timeout, Errc::missing_rank}) {
    auto const run = [code](int culprit) {
      return LocalWorld(4).run([&](Communicator& comm) -> Status {
        if (comm.rank() == culprit) return Error{.code = Errc::recv_overflow, .rank = comm.rank()};
        return Error{.code = code, .rank = comm.rank()};
      });
    };
    REQUIRE(run(2).code() == Errc::recv_overflow);
    REQUIRE(run(-1).code() == code);
    REQUIRE(run(-1).error().rank == 0);
  }
  std::atomic<int> ran{0};
  REQUIRE(LocalWorld(3).run([&](Communicator&) { ++ran; }).ok());
  REQUIRE(ran.load() == 3);
}

TEST_CASE("run throws what a rank threw when all have ended") {
  std::atomic<int> ended{0};
  auto const throwing = [&] {
    (void)LocalWorld(3).run([&](Communicator& comm) {
      ++ended;
      if (comm.rank() > 0) throw std::runtime_error("rank " + std::to_string(comm.rank()));
    });
  };
  REQUIRE_THROWS_WITH(throwing(), "rank 1");
  REQUIRE(ended.load() == 3);
}

TEST_CASE("ranks are grouped into nodes") {
  struct Case {
    int world, gpu_per_node, nodes;
    std::vector<int> node;
  };
  for (const Case& c : {Case{4, 0, 1, {0, 0, 0, 0}}, Case{4, 2, 2, {0, 0, 1, 1}}, Case{5, 2, 3, {0, 0, 1, 1, 2}},
                        Case{3, 1, 3, {0, 1, 2}}, Case{3, 8, 1, {0, 0, 0}}}) {
    LocalWorld world(c.world, c.gpu_per_node);
    for (int rank = 0; rank < c.world; ++rank) {
      Communicator const comm = world.communicator(rank);
      REQUIRE(comm.rank() == rank);
      REQUIRE(comm.nodes() == c.nodes);
      REQUIRE(comm.node() == c.node[static_cast<std::size_t>(rank)]);
      REQUIRE(comm.gpu_per_node() == (c.gpu_per_node == 0 ? c.world : c.gpu_per_node));
    }
  }
}

TEST_CASE("the host timeout of a world bounds its collective calls") {
  Status const s = LocalWorld(3, 0, std::chrono::milliseconds(100)).run([](Communicator& comm) -> Status {
    if (comm.rank() == 1) return {};
    return comm.barrier();
  });
  REQUIRE(s.code() == Errc::missing_rank);
  REQUIRE(s.error().peer == 1);
}

}  // namespace mori_ep::test
