// SPDX-License-Identifier: MIT
#include "mori_ep/transport/hybrid.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>

#include "mori_ep/comm/local_world.hpp"
#include "mori_ep/fabric/loopback.hpp"
#include "support/catch.hpp"
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

}  // namespace

TEST_CASE("a fabric that registers memory gets the arena's dmabuf, which is closed behind it") {
  Complaints wrong;
  Status const s = comm::LocalWorld(2, 1).run([&](comm::Communicator& comm) -> Status {
    alignas(16) static std::byte arenas[2][4096], boards[2][64];
    transport::Ends ends{.near = {comm.rank(), comm.rank() + 1},
                         .arena = arenas[comm.rank()],
                         .board = boards[comm.rank()],
                         .owner = nullptr,
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

}  // namespace mori_ep::test
