// SPDX-License-Identifier: MIT
// Warps of many blocks write a ring in host-visible memory while the host reads it.
#include <chrono>
#include <map>
#include <string>
#include <thread>

#include "mori_ep/comm/symmetric_heap.hpp"
#include "mori_ep/fabric/command_ring.hpp"
#include "support/catch.hpp"
#include "support/machine.hpp"

namespace mori_ep::test {

using fabric::Command;
using fabric::CommandRing;
using fabric::CommandRingRef;

namespace {

//! Each warp writes a row of its block's numbers to host-visible memory, and says so in a command.
struct Writer {
  CommandRingRef ring;
  std::uint64_t* rows;  // [writers][each]: one word for each command
  exec::WaitLimits limits;
  std::uint32_t* failures;
  std::uint32_t each, reserved;

  template <exec::KernelContext Ctx>
  MORI_EP_HD void operator()(Ctx& ctx) const {
    auto const writer = static_cast<std::uint32_t>(ctx.block() * ctx.warps() + ctx.warp());
    for (std::uint32_t n = 0; n < each; ++n) {
      if (ctx.lane() == 0) ctx.store(rows + writer * each + n, std::uint64_t{n} * 3 + writer);
      ctx.flush_stores();
      ctx.warp_sync();
      fabric::Pushed const pushed = ring.push(
          ctx, {.id = {.peer = static_cast<std::uint16_t>(writer), .epoch = n}, .local_offset = std::uint64_t{n} * 16},
          limits);
      bool bad = pushed.wait.end != exec::WaitEnd::arrived;
      if (ctx.lane() == 0 && n + 1 == each)
        bad = bad || ring.await_end(ctx, pushed.sequence, limits).end != exec::WaitEnd::arrived;
      if (ctx.lane() == 0 && bad) ctx.tally(failures, 1);
    }
  }
};

}  // namespace

TEST_CASE("warps of many blocks write one ring") {
  constexpr int kBlocks = 32, kWarps = 4, kWriters = kBlocks * kWarps;
  constexpr std::uint32_t kEach = 200;
  struct Board {
    std::uint64_t rows[kWriters * kEach];
    std::uint64_t peers[2];
    std::uint32_t failed, failures;
  };
  for (std::int64_t const capacity : {4, 1024}) {
    comm::Arena<Machine> const memory(sizeof(Board), comm::Place::board);
    REQUIRE(memory.data() != nullptr);
    auto* board = reinterpret_cast<Board*>(memory.data());
    auto ring = CommandRing<Machine>::create(capacity, 0u - kWriters * kEach / 2).value();
    auto reader = ring.reader();
    std::map<int, std::uint32_t> expected;
    std::string wrong;
    Machine::Stream stream;
    Writer const kernel{ring.ref(),       board->rows, {20'000'000'000, &board->failed, board->peers, 1, -1},
                        &board->failures, kEach,       0};
    Machine::launch({.blocks = kBlocks, .warps = kWarps}, kernel, stream).or_throw();
    auto const deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int n = 0; n < kWriters * static_cast<int>(kEach) && std::chrono::steady_clock::now() < deadline;) {
      const Command* const command = reader.next();
      if (command == nullptr) continue;
      ++n;
      auto const request = command->request();
      std::uint32_t const epoch = request.id.epoch, writer = request.id.peer;
      if (epoch != expected[request.id.peer]++ || request.local_offset != epoch * 16ull) wrong = "a command";
      if (wrong.empty() && board->rows[writer * kEach + epoch] != epoch * 3ull + writer) wrong = "what it published";
      reader.free(1);
    }
    Machine::synchronize(stream).or_throw();
    REQUIRE(wrong == "");
    REQUIRE_FALSE(reader.published());
    REQUIRE(board->failures == 0);
    for (int writer = 0; writer < kWriters; ++writer) REQUIRE(expected[writer] == kEach);
  }
}

}  // namespace mori_ep::test
