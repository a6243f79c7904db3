// SPDX-License-Identifier: MIT
// Groups: who is in one, which nodes it has, and ranks that are named as it counts them.
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "mori_ep/comm/communicator.hpp"
#include "mori_ep/comm/local_world.hpp"
#include "support/catch.hpp"
#include "support/joining.hpp"

namespace mori_ep::test {

using comm::Communicator;
using comm::LocalWorld;
using std::chrono::milliseconds;

namespace {

//! Communicator::create on every rank of a mesh, each with a node's name of its own.
std::vector<Result<Communicator>> create_with(const std::vector<std::string>& node_ids, int gpu_per_node = 0) {
  auto const world = static_cast<int>(node_ids.size());
  auto const ends = mesh(world, std::chrono::seconds(30));
  std::vector<Result<Communicator>> created(node_ids.size(), Error{.code = Errc::missing_rank});
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < node_ids.size(); ++r)
    threads.emplace_back([&, r] {
      Environment environment;
      (void)environment.node_id.assign(node_ids[r]);
      created[r] = Communicator::create(ends[r], environment, gpu_per_node);
    });
  for (auto& thread : threads) thread.join();
  return created;
}

}  // namespace

TEST_CASE("nodes hold consecutive ranks, as many each but for the last") {
  struct Case {
    std::vector<std::uint64_t> nodes;
    int given, size, wrong;  //!< size 0: refused, naming rank `wrong`
  };
  for (const Case& c : {Case{{7, 7, 7, 7}, 0, 4, 0}, Case{{7, 7, 8, 8}, 0, 2, 0}, Case{{7, 7, 8, 8, 9}, 0, 2, 0},
                        Case{{7, 8, 9}, 0, 1, 0}, Case{{7, 7, 8, 8, 8}, 0, 0, 4}, Case{{7, 7, 8, 9}, 0, 0, 3},
                        Case{{7, 8, 7}, 0, 0, 2}, Case{{7, 7, 8, 8, 7, 7}, 0, 0, 4}, Case{{7, 8, 8}, 0, 0, 2},
                        Case{{7, 8, 7}, 2, 2, 0}, Case{{7, 7}, 9, 2, 0}, Case{{7}, 0, 1, 0}}) {
    auto const size = comm::group_of(c.nodes, 1, c.given);
    INFO("case of " << c.nodes.size() << " ranks: " << size.message());
    REQUIRE(size.ok() == (c.size != 0));
    if (c.size != 0) {
      REQUIRE(*size == c.size);
      continue;
    }
    REQUIRE(size.error().peer == c.wrong);
    REQUIRE(size.error().rank == 1);
    REQUIRE(size.message().find("ranks of the first node is") != std::string::npos);
  }
  std::uint64_t const one[] = {1};
  REQUIRE(comm::group_of(one, 0, -1).message().find("gpu_per_node is -1, limit 0") != std::string::npos);
}

TEST_CASE("MORI_NODE_ID says which ranks are one node, whatever their host") {
  for (auto const& created : create_with({"left", "left", "right", "right", "last"})) {
    REQUIRE(created.message() == "ok");
    REQUIRE(created->gpu_per_node() == 2);
    REQUIRE(created->nodes() == 3);
    REQUIRE(created->node() == created->rank() / 2);
    REQUIRE(created->ranks_on_host() == 5);  // the name changes no host
    REQUIRE(created->in_process(comm::all_ranks(5)));
  }
  for (auto const& created : create_with({"", "", "named"})) REQUIRE(created->nodes() == 2);
  for (auto const& created : create_with({"", "", ""})) REQUIRE(created->nodes() == 1);
  for (auto const& created : create_with({"a", "b", "a"})) REQUIRE(created.error().peer == 2);
  for (auto const& created : create_with({"a", "b", "a"}, 3)) REQUIRE(created->nodes() == 1);
}

TEST_CASE("a group counts its members from 0, keeps their nodes, and meets by itself") {
  Status const s = LocalWorld(8, 2).run([](Communicator& comm) -> Status {
    std::vector<int> const members = {2, 3, 6, 7};
    if (comm.rank() < 2 || comm.rank() == 4 || comm.rank() == 5) {
      auto const not_in = comm.sub(members);
      return not_in.status().code() == Errc::invalid_argument && not_in.error().value == comm.rank()
                 ? Status()
                 : Error{.code = Errc::invalid_config};
    }
    auto const group = comm.sub(members);
    if (!group.ok()) return group.status();
    bool right = group->world() == 4 && group->gpu_per_node() == 2 && group->nodes() == 2 &&
                 group->node() == group->rank() / 2 && members[static_cast<std::size_t>(group->rank())] == comm.rank();
    int const mine = comm.rank();
    std::vector<int> got(4);
    if (Status met = group->all_gather(&mine, got.data(), sizeof(mine)); !met.ok()) return met;
    right = right && got == members;
    auto const inner = group->sub(std::vector<int>{group->rank() / 2 * 2, group->rank() / 2 * 2 + 1});
    if (!inner.ok()) return inner.status();
    std::vector<int> two(2);
    if (Status met = inner->all_gather(&mine, two.data(), sizeof(mine)); !met.ok()) return met;
    right = right && two == std::vector<int>{mine / 2 * 2, mine / 2 * 2 + 1} && inner->nodes() == 1;
    std::vector<int> const ends = {0, 3};
    if (group->rank() == 0 || group->rank() == 3) {
      if (Status met = group->all_gather(ends, &mine, two.data(), sizeof(mine)); !met.ok()) return met;
      right = right && two == std::vector<int>{2, 7};
    }
    right = right && group->heap() == comm.heap() && inner->heap() == comm.heap();
    return right ? Status() : Error{.code = Errc::invalid_config};
  });
  REQUIRE(s.message() == "ok");
}

TEST_CASE("groups that are none, or whose nodes are uneven, are refused") {
  Communicator const comm = LocalWorld(6, 2).communicator(2);
  auto const said = [&](const std::vector<int>& members, int given = 0) { return comm.sub(members, given).message(); };
  CHECK(said({2, 1}).find("member of a group is 1, limit 3") != std::string::npos);
  CHECK(said({2, 6}).find("member of a group is 6, limit 5") != std::string::npos);
  CHECK(said({-1, 2}).find("member of a group is -1") != std::string::npos);
  CHECK(said({}).find("Only members make a group's calls") != std::string::npos);
  CHECK(said({0, 2, 3}).find("ranks of the first node is 1") != std::string::npos);
  CHECK(said({0, 2, 3}, 3) == "ok");
  CHECK(said({0, 1, 2, 3}, -2).find("gpu_per_node is -2") != std::string::npos);
  int mine = 0, got[2];
  CHECK(comm.all_gather(std::vector<int>{2, 9}, &mine, got, sizeof(mine)).code() == Errc::invalid_argument);
}

TEST_CASE("ranks that do not come are named as the group counts them, also in a group of a group") {
  auto const hold = mesh(6, milliseconds(100));
  for (bool const meshed : {false, true}) {
    LocalWorld const world(6, 0, milliseconds(100));
    Communicator const all = meshed ? Communicator(hold[4], 0) : world.communicator(4);
    auto const group = all.sub(std::vector<int>{1, 3, 4, 5});
    REQUIRE(group.ok());
    auto const inner = group->sub(std::vector<int>{0, 2, 3});  // ranks 1, 4 and 5 of the world
    REQUIRE(inner.ok());
    REQUIRE(inner->rank() == 1);
    Status const two = inner->barrier();
    CHECK(two.error().rank == 1);
    CHECK(two.error().peer == 0);
    CHECK(two.message().find("rank 1: missing rank in barrier: no word from rank 0, 2.") != std::string::npos);
    Status const three = group->barrier();
    CHECK(three.message().find("rank 2: missing rank in barrier: no word from rank 0, 1, 3.") != std::string::npos);
    Status const one = inner->all_gather(std::vector<int>{1, 2}, nullptr, nullptr, 0);
    CHECK(one.message().find("rank 1: missing rank in barrier, peer rank 2.") != std::string::npos);
    CHECK(all.barrier().message().find("no word from rank 0, 1, 2, 3, 5.") != std::string::npos);
  }
}

TEST_CASE("a list of ranks that is too long for an error's text names no rank that is not in it") {
  constexpr int kWorld = 400;
  LocalWorld const world(kWorld, 0, milliseconds(20));
  for (int every : {2, 3, 4, 5, 7}) {  // the text ends at different places of a number
    std::vector<int> members;
    for (int r = 0; r < kWorld; r += every) members.push_back(r);
    auto const group = world.communicator(0).sub(members);
    Status const s = group->barrier();
    std::string const text = s.error().text;
    INFO(text);
    REQUIRE(s.code() == Errc::missing_rank);
    int expected = 1;
    std::size_t at = 0;
    while (at < text.size() && text[at] != '.') {
      std::size_t digits = 0;
      int const rank = std::stoi(text.substr(at), &digits);
      bool const whole = at + digits < text.size() && text[at + digits] == ',';
      if (whole) REQUIRE(rank == expected++);
      at += digits;
      while (at < text.size() && (text[at] == ',' || text[at] == ' ')) ++at;
    }
    REQUIRE(expected > 10);
    REQUIRE(text.substr(text.size() - 3) == "...");
  }
}

TEST_CASE("gpu_per_node that differs between ranks is refused, and so is no bootstrap") {
  auto ends = mesh(3, std::chrono::seconds(60));
  std::vector<std::string> said(3);
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < 3; ++r)
    ranks.emplace_back([&, r] { said[r] = Communicator::create(ends[r], {}, r == 2 ? 1 : 2).message(); });
  for (auto& rank : ranks) rank.join();
  for (auto const& text : said)
    CHECK(text.find("rank 2: config mismatch in join: gpu_per_node is 1, limit 2, peer rank 0") != std::string::npos);
  CHECK(Communicator::create(nullptr).status().code() == Errc::invalid_argument);
}

}  // namespace mori_ep::test
