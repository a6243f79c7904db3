// SPDX-License-Identifier: MIT
#include "mori_ep/fabric/verbs/card.hpp"

#include <set>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace mori_ep::fabric::verbs {

namespace {
Card card(int mtu = 4096) {
  Card made;
  made.num_qp_per_pe = 4;
  made.ethernet = true;
  made.gid_kind = GidKind::roce_v2_ipv4;
  made.mtu = mtu;
  return made;
}
std::string said(const std::vector<Card>& cards) { return agree(cards).error().message(); }
}  // namespace

TEST_CASE("cards that go together; the smaller packet counts") {
  std::vector<Card> const cards = {card(4096), card(1024), card(2048)};
  REQUIRE(!agree(cards));
  REQUIRE(path_mtu(cards[0], cards[1]) == 1024);
  REQUIRE(path_mtu(cards[2], cards[0]) == 2048);
}

TEST_CASE("what does not go together is named: rank, field, both values") {
  std::vector<Card> cards(3, card());
  cards[2].num_qp_per_pe = 2;
  REQUIRE(said(cards).find("rank 2: config mismatch in create: num_qp_per_pe is 2, limit 4, peer rank 0") !=
          std::string::npos);
  cards[1].gid_kind = GidKind::roce_v1;
  REQUIRE(said(cards).find("rank 1: config mismatch in create: network is \"RoCE v1 beside RoCE v2, IPv4\"") !=
          std::string::npos);
  cards[1].ethernet = false;
  REQUIRE(said(cards).find("\"InfiniBand beside RoCE v2, IPv4\"") != std::string::npos);
  // A rank's own trouble comes before what it then cannot agree on.
  cards[2].trouble = Trouble{.step = Step::find_device}.with_text("none");
  REQUIRE(said(cards).find("rank 2: fabric error in create: RDMA devices is \"none\"") != std::string::npos);
  // Of another version nothing else is believed.
  cards[1].check ^= 1;
  REQUIRE(said(cards).find("rank 1: protocol mismatch in create: fabric version") != std::string::npos);
}

TEST_CASE("GIDs are needed over Ethernet, through routers, and where a port asks for them") {
  Card a = card(), b = card();
  REQUIRE(needs_gids(a, b));
  a.ethernet = b.ethernet = false;
  REQUIRE(!needs_gids(a, b));
  b.needs_grh = true;
  REQUIRE((needs_gids(a, b) && needs_gids(b, a)));
  b.needs_grh = false;
  b.gid[15] = 9;
  REQUIRE(!needs_gids(a, b));
  b.gid[7] = 1;  // another subnet
  REQUIRE(needs_gids(a, b));
}

TEST_CASE("every queue pair starts with another packet number, of 24 bits") {
  Card a = card();
  a.first_psn = 0xdeadbeef;
  std::set<std::uint32_t> numbers;
  for (int to = 0; to < 16; ++to)
    for (int q = 0; q < 4; ++q) numbers.insert(first_psn(a, to, q));
  REQUIRE(numbers.size() > 60);
  REQUIRE(*numbers.rbegin() < (1u << 24));
}

}  // namespace mori_ep::fabric::verbs
