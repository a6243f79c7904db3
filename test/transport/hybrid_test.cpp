// SPDX-License-Identifier: MIT
#include "mori_ep/transport/hybrid.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>

#include "mori_ep/comm/local_world.hpp"
#include "mori_ep/fabric/loopback.hpp"
#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/coded.hpp"
#include "support/expect.hpp"

namespace mori_ep::test {

namespace {

//! Whose memory drivers of other devices find.
struct ExportingHost : exec::Host {
  static inline thread_local int last_fd = -1;
  static exec::Dmabuf dmabuf(const void* memory, std::size_t bytes) noexcept {
    last_fd = ::memfd_create("dmabuf", MFD_CLOEXEC);
    return {last_fd, reinterpret_cast<std::uintptr_t>(memory) % 4096 + bytes};
  }
};

//! A fabric that registers memory.
struct Registering : fabric::Loopback<> {
  static inline thread_local exec::Dmabuf seen;
  static inline thread_local bool was_open = false;
  explicit Registering(fabric::Loopback<>&& fabric) noexcept : fabric::Loopback<>(std::move(fabric)) {}
  static Result<Registering> connect(const comm::Communicator& comm, std::span<std::byte> arena,
                                     std::span<std::byte> board, std::shared_ptr<const void> owner,
                                     const Options& options, const exec::Dmabuf& of_arena) {
    seen = of_arena;
    was_open = ::fcntl(of_arena.fd, F_GETFD) != -1;
    auto fabric = fabric::Loopback<>::connect(comm, arena, board, std::move(owner), options);
    if (!fabric.ok()) return fabric.status();
    return Result<Registering>(Registering(std::move(*fabric)));
  }
};

//! Counts what goes by each queue pair of rank 0.
struct Counting : fabric::Loopback<fabric::Order::none> {
  using Base = fabric::Loopback<fabric::Order::none>;
  static inline std::atomic<int> posted[4];
  explicit Counting(Base&& fabric) noexcept : Base(std::move(fabric)) {}
  static Result<Counting> connect(const comm::Communicator& comm, std::span<std::byte> arena,
                                  std::span<std::byte> board, std::shared_ptr<const void> owner,
                                  const Options& options) {
    auto fabric = Base::connect(comm, arena, board, std::move(owner), options);
    if (!fabric.ok()) return fabric.status();
    return Result<Counting>(Counting(std::move(*fabric)));
  }
  std::size_t post(std::span<const fabric::WorkRequest> requests) noexcept {
    std::size_t const taken = Base::post(requests);
    for (const fabric::WorkRequest& r : requests.first(taken))
      if (rank() == 0 && r.id.operation == fabric::Operation::put_signal) ++posted[r.id.queue_pair];
    return taken;
  }
};

}  // namespace

TEST_CASE("chunks take turns among the queue pairs to a peer") {
  using Ep = EpDispatchCombine<transport::Hybrid<Counting>, schedule::InterNodeV1, quant::None<bf16>, exec::Host>;
  constexpr int kTokens = 30, kHidden = 8;
  Complaints wrong;
  Status const s = comm::LocalWorld(2, 1).run([&](comm::Communicator& comm) -> Status {
    auto op = Ep::create(comm,
                         {.hidden_dim = kHidden,
                          .max_num_inp_token_per_rank = kTokens,
                          .num_experts_per_rank = 1,
                          .num_experts_per_token = 1,
                          .rows_per_put = 1},
                         {}, -1, {.queue_pairs = 3});
    if (!op.ok()) return op.status();
    exec::Host::Stream stream;
    std::vector<bf16> const x(kTokens * kHidden, bf16(2.0f));
    std::vector<bf16> y(x.size());
    std::vector<std::int32_t> const ids(kTokens, 1 - comm.rank());
    auto got = op->dispatch({.input = {x.data(), kTokens, kHidden}, .indices = {ids.data(), kTokens, 1}}, stream);
    if (!got.ok()) return got.status();
    Status const back =
        op->combine(std::move(got->ticket), {.input = got->rows, .output = {y.data(), kTokens, kHidden}}, stream);
    stream.synchronize();
    wrong.expect(back.ok() && op->status().ok(), back.message() + op->status().message());
    wrong.expect(std::all_of(y.begin(), y.end(), [](bf16 v) { return static_cast<float>(v) == 2.0f; }), "other sums");
    return comm.barrier();
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
  // 30 chunks there and 30 sums back, and a few counts.
  for (int i = 0; i < 3; ++i) {
    INFO("queue pair " << i);
    CHECK(Counting::posted[i] >= 20);
    CHECK(Counting::posted[i] <= 30);
  }
  CHECK(Counting::posted[3] == 0);
}

TEST_CASE("a fabric that registers memory gets the arena's dmabuf, which is closed behind it") {
  Complaints wrong;
  Status const s = comm::LocalWorld(2, 1).run([&](comm::Communicator& comm) -> Status {
    alignas(16) static std::byte arenas[2][4096], boards[2][64];
    transport::Ends ends{.near = {comm.rank(), comm.rank() + 1},
                         .arena = arenas[comm.rank()],
                         .board = boards[comm.rank()],
                         .owner = nullptr,
                         .keep = [](std::shared_ptr<const void>) {},
                         .fault = [] { return std::uint64_t{0}; },
                         .lost = [](int) { return std::uint64_t{0}; }};
    auto const link = transport::detail::NetworkLink<Registering, ExportingHost>::connect(comm, ends, {});
    wrong.expect(link.ok(), link.message());
    wrong.expect(Registering::was_open, "no descriptor came");
    wrong.expect(Registering::seen.fd == ExportingHost::last_fd, "another descriptor came");
    wrong.expect(Registering::seen.offset == reinterpret_cast<std::uintptr_t>(arenas[comm.rank()]) % 4096 + 4096,
                 "another offset came");
    // Once nobody opens another: a number is given anew.
    if (Status met = comm.barrier(); !met.ok()) return met;
    wrong.expect(::fcntl(ExportingHost::last_fd, F_GETFD) == -1, "it is still open");
    return comm.barrier();
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("where there is no dmabuf the fabric is told so, and memory is registered by its address") {
  Complaints wrong;
  Status const s = comm::LocalWorld(1, 1).run([&](comm::Communicator& comm) -> Status {
    alignas(16) static std::byte arena[4096], board[64];
    transport::Ends ends{.near = {0, 1},
                         .arena = arena,
                         .board = board,
                         .owner = nullptr,
                         .keep = [](std::shared_ptr<const void>) {},
                         .fault = [] { return std::uint64_t{0}; },
                         .lost = [](int) { return std::uint64_t{0}; }};
    auto const link = transport::detail::NetworkLink<Registering, exec::Host>::connect(comm, ends, {});
    wrong.expect(link.ok(), link.message());
    wrong.expect(Registering::seen.fd == -1 && Registering::seen.offset == 0, "a dmabuf came");
    return {};
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("Rdma carries what goes to any other rank") {
  auto const seed = env_number("MORI_EP_TEST_SEED", 20261202);
  std::printf("rdma: MORI_EP_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(scaled(60, 20)); ++i) {
    INFO("round " << i);
    REQUIRE(play_coded<CodedRdmaOp>(random_round(true, seed, i)) == "");
    REQUIRE(play_coded<CodedRdmaRelayOp>(random_round(true, seed, i)) == "");
  }
}

}  // namespace mori_ep::test
