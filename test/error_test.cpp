// SPDX-License-Identifier: MIT
#include <memory>
#include <string>

#include "mori_ep/error.hpp"
#include "support/catch.hpp"

namespace mori_ep::test {

TEST_CASE("a message names rank, kind, phase, field, value, limit, peer and cure") {
  Error const e{.code = Errc::config_mismatch,
                .phase = Phase::create,
                .rank = 3,
                .peer = 0,
                .field = "hidden_dim",
                .value = 64,
                .limit = 128,
                .hint = "Every rank must be given the value of rank 0."};
  REQUIRE(
      e.message() ==
      "mori_ep: rank 3: config mismatch in create: hidden_dim is 64, limit 128, peer rank 0. Every rank must be given "
      "the value of rank 0.");
  Error const timeout{
      .code = Errc::timeout, .phase = Phase::dispatch_rows, .rank = 0, .peer = 7, .expected = 5, .seen = 4};
  REQUIRE(timeout.message() == "mori_ep: rank 0: timeout in dispatch: rows, peer rank 7, expected epoch 5, seen 4");
  Error const told{.code = Errc::peer_fault, .phase = Phase::combine_ready, .rank = 1, .peer = 2, .value = 4};
  REQUIRE(told.message() == "mori_ep: rank 1: peer fault in combine: ready: rank 4 reports a fault of peer rank 2");
  REQUIRE(Error{.code = Errc::invalid_argument, .field = "x", .value = -1}.message() ==
          "mori_ep: invalid argument: x is -1");
}

TEST_CASE("text stands for the value where there is one, cut to fit, and for all missing ranks") {
  Error const e{.code = Errc::invalid_environment, .field = "MORI_SHMEM_HEAP_SIZE", .hint = "Give bytes, or 4G."};
  REQUIRE(e.with_text("4 bananas").message() ==
          "mori_ep: invalid environment: MORI_SHMEM_HEAP_SIZE is \"4 bananas\". Give bytes, or 4G.");
  std::string const longer(200, 'x');
  REQUIRE(std::string(e.with_text(longer).text) == std::string(sizeof(e.text) - 4, 'x') + "...");
  std::string const fits(sizeof(e.text) - 1, 'y');
  REQUIRE(std::string(e.with_text(fits).text) == fits);
  Error const missing{.code = Errc::missing_rank, .phase = Phase::barrier, .rank = 0, .peer = 1};
  REQUIRE(missing.message() == "mori_ep: rank 0: missing rank in barrier, peer rank 1");
  REQUIRE(missing.with_text("1, 3").message() == "mori_ep: rank 0: missing rank in barrier: no word from rank 1, 3");
}

TEST_CASE("every code and phase has a name of its own") {
  for (int i = 0; i <= static_cast<int>(Errc::fabric_error); ++i) {
    REQUIRE(std::string(name(static_cast<Errc>(i))) != "unknown");
    for (int j = 0; j < i; ++j) REQUIRE(std::string(name(static_cast<Errc>(i))) != name(static_cast<Errc>(j)));
  }
  for (int i = 0; i <= static_cast<int>(Phase::join); ++i)
    REQUIRE(std::string(name(static_cast<Phase>(i))) != "unknown");
}

TEST_CASE("Status and Result carry an error or success") {
  Status const good, bad(Error{.code = Errc::timeout});
  REQUIRE((good.ok() && good && good.message() == "ok"));
  REQUIRE((!bad.ok() && !bad && bad.code() == Errc::timeout));
  REQUIRE_NOTHROW(good.or_throw());
  REQUIRE_THROWS_AS(bad.or_throw(), Exception);

  Result<std::unique_ptr<int>> number(std::make_unique<int>(5));
  REQUIRE((number.ok() && **number == 5 && number.status().ok()));
  auto taken = std::move(number).value();
  REQUIRE(*taken == 5);
  Result<int> const failed(bad);
  REQUIRE((!failed.ok() && failed.error().code == Errc::timeout && failed.status().code() == Errc::timeout));
  Result<int> none(Error{.code = Errc::wrong_ticket, .field = "ticket"});
  REQUIRE_THROWS_WITH(none.value(), "mori_ep: wrong ticket: ticket is 0");
}

}  // namespace mori_ep::test
