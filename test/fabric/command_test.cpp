// SPDX-License-Identifier: MIT
#include "mori_ep/fabric/command.hpp"
#include "support/catch.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using fabric::Command;
using fabric::Operation;
using fabric::WorkRequest;

namespace {
constexpr std::uint64_t kTop = 0xffffffffull;
//! Everything at its largest.
constexpr WorkRequest kLargest{
    .id = {.operation = Operation::put_signal, .queue_pair = 63, .peer = 4095, .epoch = 0xffffffffu},
    .local_offset = kTop * 16,
    .remote_offset = kTop * 16,
    .bytes = kTop * 16,
    .signal_offset = kTop * 8,
    .signal = exec::signal_word(0xffffffffu, 0xffffffffu)};

bool same(const WorkRequest& a, const WorkRequest& b) {
  return a.id == b.id && a.local_offset == b.local_offset && a.remote_offset == b.remote_offset && a.bytes == b.bytes &&
         a.signal_offset == b.signal_offset && a.signal == b.signal;
}
}  // namespace

TEST_CASE("a command holds every field of a request and its own number") {
  static_assert(sizeof(Command) == 32);
  Rng rng(env_number("MORI_EP_TEST_SEED", 1));
  for (int i = 0; i < 1000; ++i) {
    std::uint32_t const epoch = static_cast<std::uint32_t>(rng.next()), number = static_cast<std::uint32_t>(rng.next());
    WorkRequest const request{.id = {.operation = static_cast<Operation>(rng.in(0, 2)),
                                     .queue_pair = static_cast<std::uint8_t>(rng.in(0, 63)),
                                     .peer = static_cast<std::uint16_t>(rng.in(0, 4095)),
                                     .epoch = epoch},
                              .local_offset = rng.next() % (kTop + 1) * 16,
                              .remote_offset = rng.next() % (kTop + 1) * 16,
                              .bytes = rng.next() % (kTop + 1) * 16,
                              .signal_offset = rng.next() % (kTop + 1) * 8,
                              .signal = exec::signal_word(epoch, static_cast<std::uint32_t>(rng.next()))};
    REQUIRE(Command::holds(request));
    Command const command = Command::of(request, number);
    REQUIRE(command.sequence() == number);
    REQUIRE(same(command.request(), request));
  }
  REQUIRE(Command::holds(kLargest));
  REQUIRE(same(Command::of(kLargest, 0).request(), kLargest));
}

TEST_CASE("what 32 bytes cannot hold is said to be so") {
  auto const refused = [](auto change) {
    WorkRequest request = kLargest;
    change(request);
    return !Command::holds(request);
  };
  REQUIRE(refused([](WorkRequest& r) { r.local_offset += 16; }));
  REQUIRE(refused([](WorkRequest& r) { r.local_offset -= 8; }));
  REQUIRE(refused([](WorkRequest& r) { r.remote_offset += 16; }));
  REQUIRE(refused([](WorkRequest& r) { r.remote_offset -= 1; }));
  REQUIRE(refused([](WorkRequest& r) { r.bytes += 16; }));
  REQUIRE(refused([](WorkRequest& r) { r.bytes -= 4; }));
  REQUIRE(refused([](WorkRequest& r) { r.signal_offset += 8; }));
  REQUIRE(refused([](WorkRequest& r) { r.signal_offset -= 4; }));
  REQUIRE(refused([](WorkRequest& r) { r.id.peer = 4096; }));
  REQUIRE(refused([](WorkRequest& r) { r.id.queue_pair = 64; }));
  REQUIRE(refused([](WorkRequest& r) { r.signal = exec::signal_word(7, 0); }));
}

}  // namespace mori_ep::test
