// SPDX-License-Identifier: MIT
// A network of cards between GPUs: that it compiles, and what it says where there is no card.
#include "mori_ep/fabric/verbs.hpp"

#include <string>

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

}  // namespace mori_ep::test
