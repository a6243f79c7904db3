// SPDX-License-Identifier: MIT
// A network of cards between GPUs: that it compiles, and what it says where there is no card.
#include "mori_ep/fabric/verbs.hpp"

#include <cstddef>
#include <cstdio>
#include <string>

#include <unistd.h>

#include "mori_ep/mori_ep.hpp"
#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/machine.hpp"

namespace mori_ep::test {

TEST_CASE("GPUs whose nodes cards should join are an error, by name, or an operator") {
  using Ep = EpDispatchCombine<transport::Hybrid<fabric::Verbs>, schedule::InterNodeV1, quant::None<bf16>, Machine>;
  Complaints wrong;
  Status const s = comm::LocalWorld(2, 1).run([&](comm::Communicator& comm) -> Status {
    auto const op = Ep::create(
        comm,
        {.hidden_dim = 8, .max_num_inp_token_per_rank = 1, .num_experts_per_rank = 1, .num_experts_per_token = 1});
    // No card is a fabric_error; that a card refuses a GPU's memory, the system's.
    Errc const code = op.status().code();
    wrong.expect(op.ok() || code == Errc::fabric_error || code == Errc::system_error, op.message());
    return comm.barrier();
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("a device's memory has a dmabuf, where the driver gives one, and the host's has none") {
  constexpr std::size_t kBytes = 1 << 20;
  std::byte* const arena = Machine::allocate(kBytes);
  std::byte* const board = Machine::allocate_board(kBytes);
  REQUIRE(arena != nullptr);
  REQUIRE(board != nullptr);
  for (std::size_t const offset : {0u, 512u, 8192u}) {
    exec::Dmabuf const found = Machine::dmabuf(arena + offset, kBytes - offset);
    if (found.fd < 0) {
      std::printf("skipped: this driver gives no dmabuf\n");
      continue;
    }
    char name[64] = {};
    (void)!::readlink(("/proc/self/fd/" + std::to_string(found.fd)).c_str(), name, sizeof(name) - 1);
    INFO(name);
    CHECK(std::string(name).find("dmabuf") != std::string::npos);
    CHECK(found.offset < 65536);
    CHECK(found.offset % 512 == offset % 512);
    ::close(found.fd);
  }
  CHECK(Machine::dmabuf(board, kBytes).fd == -1);
  CHECK(MORI_EP_RT(PeekAtLastError)() == exec::gpu::kRtSuccess);  // no later call hears of what was refused
  if (Machine::can_share()) {                                     // ranks that are processes have such arenas
    exec::ShareableMemory const shared = Machine::allocate_shareable(kBytes);
    REQUIRE(shared.memory != nullptr);
    exec::Dmabuf const whole = Machine::dmabuf(arena, kBytes), found = Machine::dmabuf(shared.memory, kBytes);
    CHECK((found.fd >= 0) == (whole.fd >= 0));
    if (found.fd >= 0) ::close(found.fd);
    if (whole.fd >= 0) ::close(whole.fd);
    ::close(shared.fd);
    Machine::release_shareable(shared.memory, kBytes);
  }
  Machine::release(arena, kBytes);
  Machine::release_board(board, kBytes);
}

}  // namespace mori_ep::test
