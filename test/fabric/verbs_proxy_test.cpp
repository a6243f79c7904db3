// SPDX-License-Identifier: MIT
// Kernels, a ring, a proxy and fabric::Verbs together: over the fake table of verbs, and over this machine's device.
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "mori_ep/comm/local_world.hpp"
#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/fabric/proxy.hpp"
#include "mori_ep/fabric/verbs.hpp"
#include "support/catch.hpp"
#include "support/fake_verbs.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

#if MORI_EP_HAS_VERBS

using exec::WaitEnd;
using exec::host::Context;
using fabric::Operation;
using fabric::Verbs;
using fabric::WorkRequest;

namespace {

constexpr std::uint64_t kRow = 1024, kRowWords = kRow / sizeof(std::uint64_t);

//! Words from each rank (a signal, an acknowledgement), rows from each, rows to each.
struct Map {
  int world;
  [[nodiscard]] std::uint64_t signal(int from) const { return 16 * std::uint64_t(from); }
  [[nodiscard]] std::uint64_t ack(int from) const { return signal(from) + 8; }
  [[nodiscard]] std::uint64_t came(int from) const { return 4096 + kRow * std::uint64_t(from); }
  [[nodiscard]] std::uint64_t goes(int to) const { return came(world) + kRow * std::uint64_t(to); }
  [[nodiscard]] std::uint64_t bytes() const { return goes(world); }
};

//! A kernel of one block: a row to every rank and one from every rank, round after round.
struct Exchange {
  Map map;
  int rank, queue_pairs;
  std::uint32_t rounds;
  std::uint64_t* arena;
  fabric::CommandRingRef ring;
  exec::WaitLimits limits;
  std::atomic<int>* faults;

  [[nodiscard]] std::uint64_t* at(std::uint64_t offset) const { return arena + offset / 8; }
  [[nodiscard]] static std::uint64_t word(std::uint32_t round, int from, int to, std::uint64_t i) {
    return mix(round, std::uint64_t(from), std::uint64_t(to), i);
  }
  [[nodiscard]] bool arrived(Context& ctx, std::uint64_t offset, std::uint32_t round) const {
    return ctx.wait(at(offset), round, limits, exec::WaitOrder::acquire).end == WaitEnd::arrived;
  }
  [[nodiscard]] bool push(Context& ctx, Operation operation, int to, std::uint32_t round, std::uint64_t signal) const {
    return ring.push(ctx,
                     WorkRequest{.id = {.operation = operation,
                                        .queue_pair = static_cast<std::uint8_t>(round % std::uint32_t(queue_pairs)),
                                        .peer = static_cast<std::uint16_t>(to),
                                        .epoch = round},
                                 .local_offset = map.goes(to),
                                 .remote_offset = map.came(rank),
                                 .bytes = kRow,
                                 .signal_offset = signal,
                                 .signal = exec::signal_word(round, 0)},
                     limits)
               .wait.end == WaitEnd::arrived;
  }

  void operator()(Context& ctx) const {
    for (std::uint32_t round = 1; round <= rounds; ++round) {
      bool well = true;
      for (int to = 0; to < map.world && well; ++to) {
        well = arrived(ctx, map.ack(to), round - 1);
        for (std::uint64_t i = 0; i < kRowWords; ++i) at(map.goes(to))[i] = word(round, rank, to, i);
        // Where the fabric keeps order, a signal behind a put says as much as one that comes with it.
        if (round % 2 == 0) {
          well = well && push(ctx, Operation::put_signal, to, round, map.signal(rank));
        } else {
          well = well && push(ctx, Operation::put, to, round, 0);
          well = well && push(ctx, Operation::signal, to, round, map.signal(rank));
        }
      }
      for (int from = 0; from < map.world && well; ++from) {
        well = arrived(ctx, map.signal(from), round);
        for (std::uint64_t i = 0; i < kRowWords; ++i)
          well = well && at(map.came(from))[i] == word(round, from, rank, i);
        well = well && push(ctx, Operation::signal, from, round, map.ack(rank));
      }
      if (!well) {
        ++*faults;
        return;
      }
    }
  }
};

Status exchange(int world, std::uint32_t rounds, std::shared_ptr<const fabric::verbs::Api> api) {
  std::atomic<int> faults{0};
  Status const status = comm::LocalWorld(world).run([&](comm::Communicator& comm) -> Status {
    FakeVerbs::rank = comm.rank();
    Map const map{world};
    std::vector<std::uint64_t> arena(map.bytes() / 8);
    Verbs::Options options;
    options.depth = 8;
    auto fabric = Verbs::connect(comm, {arena.data(), map.bytes()}, options, api);
    if (!fabric.ok()) return fabric.status();
    auto ring = fabric::CommandRing<exec::Host>::create(16);
    if (!ring.ok()) return ring.status();
    std::vector<std::uint64_t> notices(2 * static_cast<std::size_t>(world));
    std::uint32_t failed = 0;
    fabric::Proxy proxy(*fabric, {ring->reader()});
    {
      exec::Host::Stream stream;
      stream.launch({.blocks = 1},
                    Exchange{map, comm.rank(), fabric->queue_pairs(), rounds, arena.data(), ring->ref(),
                             exec::WaitLimits{60'000'000'000, &failed, notices.data(), world, -1}, &faults});
      stream.synchronize();
    }
    if (Status s = proxy.stop(); !s.ok()) return s;
    return comm.barrier();  // a peer's last acknowledgement may be on its way here
  });
  CHECK(faults == 0);
  return status;
}

}  // namespace

TEST_CASE("kernels behind proxies exchange rows over the fake table of verbs") {
  for (int const world : {1, 2, 3}) {
    FakeVerbs fake;
    fake.refuse_one_in = 4;
    CAPTURE(world);
    CHECK(exchange(world, static_cast<std::uint32_t>(scaled(100, 30)), FakeVerbs::api()).message() == "ok");
    CHECK((fake.live == 0 && fake.misuse == 0));
  }
}

TEST_CASE("kernels behind proxies exchange rows over the device of this machine", "[device]") {
  Status const status = exchange(2, 100, nullptr);
  std::string const field = status.error().field;
  if (env_number("MORI_EP_TEST_RDMA", 0) == 0 && (field == "libibverbs.so.1" || field == "RDMA devices")) {
    WARN("skipped: " << status.message());
    return;
  }
  CHECK(status.message() == "ok");
}

#else

TEST_CASE("without libibverbs' header no proxy can be tried over it") { WARN("skipped: no <infiniband/verbs.h>"); }

#endif

}  // namespace mori_ep::test
