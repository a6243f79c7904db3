// SPDX-License-Identifier: MIT
// On the host kernels are threads of a stream; gpu/nodes_test.cpp has the same network between arenas of a device.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mori_ep/fabric/device_loopback.hpp"
#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/guarded.hpp"
#include "support/loopback_world.hpp"
#include "support/nodes.hpp"
#include "support/requests.hpp"

namespace mori_ep::test {

using fabric::LoopbackOptions;
using fabric::Operation;
using fabric::WorkRequest;
using Fabric = fabric::DeviceLoopback<exec::Host>;
using World = FabricWorld<Fabric>;

TEST_CASE("kernels carry any run of bytes, and then its signal") {
  constexpr std::size_t kBytes = 8192;
  World world(3, kBytes, {.queue_pairs = 2, .depth = 8});
  auto& end = world.end(0);
  REQUIRE(end.rank() == 0);
  REQUIRE(end.world() == 3);
  REQUIRE(end.queue_pairs() == 2);
  REQUIRE(end.depth() == 8);
  for (std::size_t i = 0; i < kBytes; ++i) world.arena(0)[i] = static_cast<std::byte>(i * 7 + 1);
  std::uint16_t sequence = 0;
  std::uint64_t bytes = 0;
  std::vector<std::byte> expected(kBytes - kSignals);
  // Of every alignment and length around the 16 bytes that a lane moves at once.
  for (std::uint64_t const at : {0u, 1u, 8u, 15u, 16u, 17u})
    for (std::uint64_t const n : {0u, 1u, 15u, 16u, 17u, 31u, 33u, 1000u, 4096u}) {
      INFO(n << " bytes at " << at);
      WorkRequest r =
          request(Operation::put_signal, 2, sequence, kSignals + at, n, 8u * (sequence % 64u), sequence % 2);
      r.remote_offset += sequence % 3 == 0 ? 16 : sequence % 3;
      std::fill_n(world.arena(2) + kSignals, kBytes - kSignals, std::byte{0});
      std::fill(expected.begin(), expected.end(), std::byte{0});
      std::copy_n(world.arena(0) + r.local_offset, n, expected.data() + (r.remote_offset - kSignals));
      REQUIRE(end.post(std::span(&r, 1)) == 1);
      auto const done = poll_until(end, 1);
      REQUIRE(done.size() == 1);
      REQUIRE(done[0].status.ok());
      REQUIRE(done[0].id == r.id);
      REQUIRE(world.word(2, r.signal_offset) == r.signal);
      REQUIRE(std::equal(expected.begin(), expected.end(), world.arena(2) + kSignals));
      ++sequence;
      bytes += n;
    }
  REQUIRE(end.counters(2).bytes.load() == bytes);
  REQUIRE(end.counters(2).completions.load() == sequence);
  WorkRequest const self[] = {request(Operation::signal, 0, 0, 0, 0, 24)};
  REQUIRE(end.post(self) == 1);
  REQUIRE(poll_until(end, 1).size() == 1);
  REQUIRE(world.word(0, 24) == exec::signal_word(7, 0));
}

TEST_CASE("more requests than a launch has errands, in any number of posts") {
  World world(2, 1 << 16, {.depth = 100});
  auto& end = world.end(0);
  std::vector<WorkRequest> requests;
  for (std::uint16_t i = 0; i < 100; ++i)
    requests.push_back(request(Operation::put_signal, 1, i, kSignals + 16u * i, 16, 8u * i));
  for (std::size_t const each : {100u, 33u, 1u}) {
    std::fill_n(world.arena(0) + kSignals, 1600, static_cast<std::byte>(each));
    for (std::size_t first = 0; first < 100; first += each) {
      auto const some = std::span(requests).subspan(first, std::min<std::size_t>(each, 100 - first));
      REQUIRE(end.post(some) == some.size());
    }
    REQUIRE(end.post(std::span(requests).first(1)) == 0);  // it holds them until a poll
    REQUIRE(end.counters(1).refusals.load() != 0);
    REQUIRE(poll_until(end, 100).size() == 100);
    REQUIRE(Guarded::all(world.arena(1) + kSignals, 1600, static_cast<std::byte>(each)));
    for (std::uint16_t i = 0; i < 100; ++i) REQUIRE(world.word(1, 8u * i) == exec::signal_word(7, i));
  }
}

TEST_CASE("an endpoint that goes waits for what its kernels carry") {
  World world(2, 1 << 20, {});
  std::fill_n(world.arena(0), 1 << 20, std::byte{9});
  WorkRequest const large[] = {request(Operation::put_signal, 1, 1, kSignals, (1 << 20) - kSignals, 0)};
  REQUIRE(world.end(0).post(large) == 1);
  world.drop(0);
  REQUIRE(world.word(1, 0) == exec::signal_word(7, 1));
  REQUIRE(Guarded::all(world.arena(1) + kSignals, (1 << 20) - kSignals, std::byte{9}));
}

TEST_CASE("a request out of bounds fails its queue pair, and nothing of it is written") {
  World world(2, 4096, {.queue_pairs = 2});
  auto& end = world.end(0);
  std::fill_n(world.arena(0), 4096, std::byte{5});
  WorkRequest const before[] = {request(Operation::put_signal, 1, 0, 2048, 64, 0),
                                request(Operation::put, 1, 1, kSignals, 4096)};
  REQUIRE(end.post(before) == 2);
  auto const one_of_two = poll_until(end, 2);  // what was carried is not told to have failed
  REQUIRE(one_of_two.size() == 2);
  for (const auto& completion : one_of_two) REQUIRE(completion.status.ok() == (completion.id.sequence == 0));
  REQUIRE(Guarded::all(world.arena(1) + 2048, 64, std::byte{5}));
  std::fill_n(world.arena(1), 4096, std::byte{0});
  WorkRequest const wrong[] = {request(Operation::put, 1, 0, 4096 - 8, 16),
                               request(Operation::put, 1, 1, kSignals, 16)};
  REQUIRE(end.post(wrong) == 2);
  auto const told = poll_until(end, 2);
  REQUIRE(told.size() == 2);
  for (const auto& completion : told) {
    Complaints complaints;
    complaints.refused(completion.status, Errc::invalid_argument, "local_offset + bytes", 5120, 4096);
    REQUIRE(complaints.text() == "");
  }
  REQUIRE(Guarded::all(world.arena(1), 4096, std::byte{0}));
  WorkRequest const nobody[] = {request(Operation::signal, 2, 0, 0, 0)};
  REQUIRE(end.post(nobody) == 1);
  REQUIRE(poll_until(end, 1).at(0).status.error().field == std::string("peer"));
  WorkRequest const good[] = {request(Operation::signal, 1, 2, 0, 0, 8, 1)};
  REQUIRE(end.post(good) == 1);
  REQUIRE(poll_until(end, 1).at(0).status.ok());
}

TEST_CASE("options that only fabric::Loopback has are refused, of any rank") {
  Complaints wrong;
  comm::LocalWorld(2)
      .run([&](comm::Communicator& comm) -> Status {
        LoopbackOptions options;
        if (comm.rank() == 1) options.reorder = true;
        alignas(16) static std::byte arenas[2][64];
        auto const end = Fabric::connect(comm, arenas[comm.rank()], {}, nullptr, options);
        wrong.expect(end.status().code() == Errc::invalid_config && end.status().error().rank == 1 &&
                         end.message().find("fabric::Loopback") != std::string::npos,
                     end.message());
        return {};
      })
      .or_throw();
  REQUIRE(wrong.text() == "");
}

TEST_CASE("relays over it: rows and sums of the contract") {
  auto const seed = env_number("MORI_EP_TEST_SEED", 20261201);
  for (std::uint64_t round = 0; round < 12; ++round) {
    Rng rng(mix(seed, round, 1));
    require_carried(mix(seed, round), rng.in(1, 4), rng.in(1, 4));
  }
}

}  // namespace mori_ep::test
