// SPDX-License-Identifier: MIT
#include "mori_ep/fabric/verbs/address.hpp"

#include <optional>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace mori_ep::fabric::verbs {

namespace {

Gid gid(int index, GidKind kind, const char* address) {
  Gid made{.index = index, .kind = kind};
  REQUIRE(::inet_pton(AF_INET6, address, made.bytes.data()) == 1);
  return made;
}
NameFilter names(const char* list) {
  NameFilter filter;
  REQUIRE(filter.list.assign(list));
  return filter;
}
Port port(const char* device, int number, bool active, std::vector<Gid> gids, bool ethernet = true) {
  return {.device = device, .number = number, .active = active, .ethernet = ethernet, .gids = std::move(gids)};
}
constexpr auto kV1 = GidKind::roce_v1, kV6 = GidKind::roce_v2_ipv6, kV4 = GidKind::roce_v2_ipv4,
               kIb = GidKind::infiniband;

void require(const Trouble& trouble, Step step, const std::string& text) {
  INFO(trouble.error().message());
  REQUIRE(trouble.step == step);
  REQUIRE(trouble.error().message().find(text) != std::string::npos);
  REQUIRE(*trouble.error().hint != '\0');
}

}  // namespace

TEST_CASE("of a port's addresses the newest RoCE over IPv4 is taken, and one of the link only for want of others") {
  std::vector<Gid> const all = {gid(0, kV1, "fe80::1"),           gid(1, kV6, "fe80::1"),
                                gid(2, kV1, "::ffff:10.0.0.1"),   gid(3, kV4, "::ffff:10.0.0.1"),
                                gid(4, kV6, "2001::1"),           gid(5, kV4, "::ffff:10.0.0.2"),
                                gid(6, kV4, "::ffff:169.254.0.9")};
  auto const among = [&](std::vector<std::size_t> some) {
    std::vector<Gid> gids;
    for (std::size_t i : some) gids.push_back(all[i]);
    return choose_gid(gids, {})->index;
  };
  REQUIRE(among({0, 1, 2, 3, 4, 5, 6}) == 3);
  REQUIRE(among({6, 5, 4}) == 5);
  REQUIRE(among({0, 1, 2, 4}) == 4);
  REQUIRE(among({6, 4}) == 4);
  REQUIRE(among({0, 1}) == 1);
  REQUIRE(among({0, 2}) == 2);
  REQUIRE(choose_gid(all, 2)->index == 2);
  REQUIRE(choose_gid(all, 7) == nullptr);
  REQUIRE(choose_gid({}, {}) == nullptr);
  std::vector<Gid> const infiniband = {gid(0, kIb, "fe80::2:c903:1:1"), gid(1, kIb, "fe80::2:c903:1:2")};
  REQUIRE(choose_gid(infiniband, {})->index == 0);
  REQUIRE(all[3].text() == "3 ::ffff:10.0.0.1");
}

TEST_CASE("ports: admitted, ACTIVE, with an address; a host's ranks take them in turn") {
  std::vector<Gid> const good = {gid(1, kV4, "::ffff:10.0.0.1")};
  std::vector<Port> const ports = {port("mlx5_0", 1, true, good), port("mlx5_0", 2, false, good),
                                   port("mlx5_1", 1, true, good), port("mlx5_2", 1, true, {}),
                                   port("mlx5_10", 1, true, good)};
  auto const taken = [&](const char* list, int turn, std::optional<int> index = {}) {
    PortChoice choice;
    Trouble const trouble = choose_port(ports, names(list), index, turn, choice);
    INFO(trouble.error().message());
    REQUIRE(!trouble);
    REQUIRE(choice.gid.index == 1);
    return ports[choice.port].text();
  };
  REQUIRE(taken("", 0) == "mlx5_0 port 1");
  REQUIRE(taken("", 1) == "mlx5_1 port 1");
  REQUIRE(taken("", 2) == "mlx5_10 port 1");
  REQUIRE(taken("", 3) == "mlx5_0 port 1");
  REQUIRE(taken("mlx5_10,mlx5_1", 0) == "mlx5_10 port 1");
  REQUIRE(taken("mlx5_10,mlx5_1", 1) == "mlx5_1 port 1");
  REQUIRE(taken("^mlx5_0", 0) == "mlx5_1 port 1");
  REQUIRE(taken("mlx5_1", 5, 1) == "mlx5_1 port 1");
}

TEST_CASE("no port: the error says what there is, and the cure") {
  PortChoice choice;
  std::vector<Port> const ports = {port("mlx5_0", 1, true, {gid(1, kV4, "::ffff:10.0.0.1")}),
                                   port("mlx5_1", 1, false, {}), port("mlx5_2", 1, true, {})};
  require(choose_port({}, {}, {}, 0, choice), Step::find_device, "RDMA devices is \"none\"");
  require(choose_port(ports, names("mlx5"), {}, 0, choice), Step::admit_device,
          "MORI_RDMA_DEVICES is \"mlx5, where there is mlx5_0, mlx5_1, mlx5_2\"");
  require(choose_port(ports, names("mlx5_1"), {}, 0, choice), Step::find_active_port, "none: mlx5_1 port 1 is not");
  require(choose_port(ports, names("mlx5_2"), {}, 0, choice), Step::find_gid, "none at mlx5_2 port 1");
  require(choose_port(ports, names("^mlx5_2"), 9, 0, choice), Step::find_gid_index,
          "MORI_IB_GID_INDEX is \"9, and mlx5_0 port 1 has 1 ::ffff:10.0.0.1\"");
  // InfiniBand needs no GID in its subnet.
  std::vector<Port> const infiniband = {port("ib0", 1, true, {}, false)};
  REQUIRE(!choose_port(infiniband, {}, {}, 0, choice));
  require(choose_port(infiniband, {}, 0, 0, choice), Step::find_gid_index, "ib0 port 1 has none");
}

TEST_CASE("packet sizes and their codes") {
  for (int code = 1; code <= 5; ++code) REQUIRE(mtu_code(mtu_bytes(code)) == code);
  REQUIRE(mtu_bytes(5) == 4096);
  REQUIRE(mtu_code(1500) == 3);
  REQUIRE(mtu_code(9000) == 5);
}

TEST_CASE("every step that may fail has words") {
  for (int i = 1; i <= static_cast<int>(Step::same_network); ++i) {
    Error const error = Trouble{.step = static_cast<Step>(i), .rank = 2}.error();
    REQUIRE((error.code != Errc::ok && *error.field != '\0' && error.rank == 2 && error.phase == Phase::create));
  }
  Trouble const refused = refused_call(Step::reg_arena, ENOMEM, "fake0 port 1", 3);
  REQUIRE(refused.error().message() ==
          "mori_ep: system error in create: ibv_reg_mr is \"Cannot allocate memory (fake0 port 1)\", peer rank 3. " +
              std::string(refused.error().hint));
  // What another process says is not trusted to be a step.
  Trouble odd{.step = static_cast<Step>(200)};
  std::memset(odd.text, 'x', sizeof(odd.text));
  REQUIRE(odd.error().code == Errc::protocol_mismatch);
  REQUIRE(odd.error().message().size() < 300);
}

}  // namespace mori_ep::fabric::verbs
