// SPDX-License-Identifier: MIT
#include "mori_ep/routing/ticket.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {

using routing::TicketLedger;
using Stage = TicketLedger::Stage;

TEST_CASE("sets are taken in turn and refused while they are held") {
  for (int sets : {1, 2}) {
    TicketLedger ledger(sets);
    std::uint64_t serial[3] = {};
    for (int i = 0; i < sets; ++i) REQUIRE(*ledger.take(0, serial[i]) == i);
    auto const busy = ledger.take(5, serial[2]);
    REQUIRE(busy.error().code == Errc::buffer_set_busy);
    REQUIRE(busy.error().rank == 5);
    REQUIRE(busy.error().value == sets);
    ledger.release(0, serial[0]);
    REQUIRE(*ledger.take(0, serial[2]) == 0);
    REQUIRE(serial[2] != serial[0]);
  }
}

TEST_CASE("the turn does not skip a set that is held") {
  TicketLedger ledger(2);
  std::uint64_t a = 0, b = 0, c = 0;
  (void)ledger.take(0, a);
  (void)ledger.take(0, b);
  ledger.release(1, b);  // the later one is free, but it is the first one's turn: ranks must agree
  REQUIRE(ledger.take(0, c).error().code == Errc::buffer_set_busy);
  ledger.release(0, a);
  REQUIRE(*ledger.take(0, c) == 0);
}

TEST_CASE("a ticket holds its set in one stage until it is released") {
  TicketLedger ledger(1);
  std::uint64_t serial = 0, later = 0;
  (void)ledger.take(0, serial);
  REQUIRE(ledger.holds(0, serial, Stage::sent));
  ledger.advance(0, serial, Stage::received);
  REQUIRE_FALSE(ledger.holds(0, serial, Stage::sent));
  REQUIRE(ledger.holds(0, serial, Stage::received));
  REQUIRE_FALSE(ledger.holds(0, serial + 1, Stage::received));
  ledger.release(0, serial);
  REQUIRE_FALSE(ledger.holds(0, serial, Stage::received));
  (void)ledger.take(0, later);
  ledger.release(0, serial);  // an old ticket cannot free the new one's set
  ledger.advance(0, serial, Stage::received);
  REQUIRE(ledger.holds(0, later, Stage::sent));
}

TEST_CASE("a dispatch that was sent but dropped still owes its receive half, once") {
  TicketLedger ledger(1);
  std::uint64_t serial = 0;
  (void)ledger.take(0, serial);
  ledger.release(0, serial);
  REQUIRE(ledger.settle_receive(0));
  REQUIRE_FALSE(ledger.settle_receive(0));
  (void)ledger.take(0, serial);
  ledger.advance(0, serial, Stage::received);
  ledger.release(0, serial);
  REQUIRE_FALSE(ledger.settle_receive(0));
}

TEST_CASE("giving a set back restores the turn") {
  TicketLedger ledger(2);
  std::uint64_t serial = 0;
  int const set = *ledger.take(0, serial);
  ledger.untake(set);
  REQUIRE(*ledger.take(0, serial) == set);
}

TEST_CASE("voiding makes every ticket foreign and starts over") {
  TicketLedger ledger(2);
  std::uint64_t old = 0, fresh = 0;
  (void)ledger.take(0, old);
  REQUIRE(ledger.knows(0, old));
  REQUIRE_FALSE(ledger.knows(0, old + 1));
  ledger.void_all();
  REQUIRE_FALSE(ledger.holds(0, old, Stage::sent));
  REQUIRE_FALSE(ledger.knows(0, old));
  REQUIRE(*ledger.take(0, fresh) == 0);
  REQUIRE(fresh != old);
  ledger.release(0, old);
  REQUIRE(ledger.holds(0, fresh, Stage::sent));
}

}  // namespace mori_ep::test
