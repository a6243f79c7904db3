// SPDX-License-Identifier: MIT
// Joins over TCP: who comes, who does not, and who should not.
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "mori_ep/comm/tcp_bootstrap.hpp"
#include "support/catch.hpp"
#include "support/joining.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using comm::Bootstrap;
using comm::Fd;
using comm::SocketAddress;
using comm::TcpOptions;
using comm::TcpRoot;
using comm::UniqueId;
using std::chrono::milliseconds;

namespace {

bool meets(const std::vector<std::optional<Joined>>& joined) {
  std::atomic<int> ok{0};
  std::vector<std::thread> threads;
  for (const auto& one : joined)
    threads.emplace_back([&] {
      Bootstrap& self = ***one;
      std::vector<int> got(joined.size());
      int const mine = self.rank();
      bool right = self.all_gather(comm::all_ranks(self.world()), &mine, got.data(), sizeof(mine)).ok();
      for (std::size_t r = 0; r < got.size(); ++r) right = right && got[r] == static_cast<int>(r);
      ok += right ? 1 : 0;
    });
  for (auto& thread : threads) thread.join();
  return ok.load() == static_cast<int>(joined.size());
}

}  // namespace

TEST_CASE("ranks join by a unique id, and nobody listens afterwards") {
  for (int world : {1, 2, 3, 8, 17}) {
    UniqueId used;
    auto joined = join_by_id(comm::all_ranks(world), world, loopback(), [&](const UniqueId& id) { used = id; });
    REQUIRE(all_ok(joined));
    REQUIRE(meets(joined));
    auto socket = comm::stream_socket(AF_INET);
    SocketAddress const address = address_in(used);
    REQUIRE(::connect(socket->get(), address.get(), address.length()) != 0);
    REQUIRE((errno == ECONNREFUSED || errno == EINPROGRESS));
  }
}

TEST_CASE("ranks join by an address, IPv4, IPv6 or a name, in any order of arrival") {
  auto probe = TcpRoot::open(loopback());
  std::uint16_t const port = address_in(probe->id()).port();
  std::string const at = ":" + std::to_string(port);
  probe = Error{.code = Errc::invalid_argument};  // the port is free again
  for (const char* host : {"127.0.0.1", "[::1]", "localhost"}) {
    auto joined = join_all({3, 1, 0, 2}, [&](int rank) {
      std::this_thread::sleep_for(milliseconds(rank == 0 ? 60 : 20 * rank));
      return comm::join_tcp(std::string(host) + at, rank, 4, loopback());
    });
    REQUIRE(all_ok(joined));
  }
}

TEST_CASE("ranks that do not join are named, on every rank that came") {
  auto const begin = std::chrono::steady_clock::now();
  auto joined = join_by_id({0, 1, 4}, 6, loopback(milliseconds(400)));
  for (const auto& one : joined) {
    CHECK(one->status().code() == Errc::missing_rank);
    CHECK(one->message().find("in join: no word from rank 2, 3, 5. ") != std::string::npos);
  }
  REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(3));
}

TEST_CASE("where no rank 0 is, that is said in time") {
  auto root = comm::get_unique_id(loopback());
  UniqueId const id = root->id();
  root = Error{.code = Errc::invalid_argument};
  auto const begin = std::chrono::steady_clock::now();
  auto const joined = comm::join_tcp(id, 1, 2, loopback(milliseconds(200)));
  REQUIRE(joined.message().find("missing rank in join, peer rank 0. Nothing answers") != std::string::npos);
  REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
}

TEST_CASE("strangers on the port change nothing: silent, half-open, loud, gone at once") {
  std::vector<Fd> held;
  auto joined = join_by_id(comm::all_ranks(4), 4, loopback(), [&](const UniqueId& id) {
    SocketAddress const address = address_in(id);
    Rng random(7);
    for (int i = 0; i < 40; ++i) {
      auto socket = comm::connect_to(address, comm::Deadline(milliseconds(50)));
      if (!socket.ok()) return;  // all have joined
      if (i % 4 == 1) say(*socket, "GET / HTTP/1.1\r\nHost: here\r\n\r\n");
      if (i % 4 == 2) {
        std::vector<std::byte> noise(static_cast<std::size_t>(random.in(1, 4000)));
        for (std::byte& b : noise) b = static_cast<std::byte>(random.next() & 0xffu);
        say(*socket, noise);
      }
      if (i % 4 == 3) {  // the beginning of a hello, and then nothing
        auto hello = comm::write_hello({.listens_at = address});
        hello.erase(hello.end() - 5, hello.end());
        say(*socket, hello);
      }
      if (i % 3 != 0) held.push_back(std::move(*socket));
    }
  });
  REQUIRE(all_ok(joined));
  REQUIRE(meets(joined));
}

TEST_CASE("who should not join is told why") {
  TcpOptions const options = loopback(milliseconds(1500));
  auto const refused = [&](const std::function<Joined(const UniqueId&)>& join) {
    std::string said;
    (void)join_by_id({0}, 3, options, [&](const UniqueId& id) { said = join(id).message(); });
    return said;
  };
  auto const has = [](const std::string& text, const std::string& part) {
    UNSCOPED_INFO(text);
    return text.find(part) != std::string::npos;
  };
  CHECK(has(refused([&](const UniqueId& id) { return comm::join_tcp(id, 1, 4, options); }),
            "config mismatch in join: world is 4, limit 3"));
  CHECK(has(refused([&](const UniqueId& id) { return comm::join_tcp(id, 7, 9, options); }),
            "config mismatch in join: world is 9, limit 3"));
  CHECK(has(refused([&](const UniqueId& id) {
              UniqueId other = id;
              other.bytes[9] ^= std::byte{1};
              return comm::join_tcp(other, 1, 3, options);
            }),
            "protocol mismatch in join: job key is"));
  CHECK(has(refused([&](const UniqueId& id) {
              auto first = std::async(std::launch::async, [&] { return comm::join_tcp(id, 1, 3, options); });
              std::this_thread::sleep_for(milliseconds(100));
              auto second = comm::join_tcp(id, 1, 3, options);
              (void)first.get();
              return second;
            }),
            "config mismatch in join: rank that joins twice is 1"));
  CHECK(has(refused([&](const UniqueId& id) {
              Fd const socket = connected_to(address_in(id));
              comm::ByteWriter later;  // a hello of a version to come: only its version is known here
              later.put(comm::kBootstrapVersion + 1).put(std::uint64_t{1}).put(std::uint64_t{2});
              say(socket, comm::write_frame({.kind = comm::FrameKind::hello}, later.take()));
              std::byte buffer[512];
              pollfd ready{.fd = socket.get(), .events = POLLIN, .revents = 0};
              (void)::poll(&ready, 1, 5000);
              auto const n = ::recv(socket.get(), buffer, sizeof(buffer), 0);
              if (n <= static_cast<ssize_t>(comm::FrameHeader::kBytes)) return Joined(Status());
              auto const refusal = comm::read_refusal(
                  std::span<const std::byte>(buffer, static_cast<std::size_t>(n)).subspan(comm::FrameHeader::kBytes));
              return refusal ? Joined(refusal->error(1)) : Joined(Status());
            }),
            "protocol mismatch in join: bootstrap version is 2, limit 1"));
}

TEST_CASE("bad arguments are refused before anything moves") {
  auto const said = [](const Joined& joined) { return joined.message(); };
  UniqueId const nothing;
  CHECK(said(comm::join_tcp(nothing, 1, 2)).find("unique id is \"other bytes\"") != std::string::npos);
  CHECK(said(comm::join_tcp(nothing, 2, 2)).find("rank is 2, limit 1") != std::string::npos);
  CHECK(said(comm::join_tcp(nothing, -1, 2)).find("rank is -1, limit 1") != std::string::npos);
  CHECK(said(comm::join_tcp(nothing, 0, 2)).find("rank is 0, limit 1") != std::string::npos);
  CHECK(said(comm::join_tcp(nothing, 0, 0)).find("world is 0, limit 1") != std::string::npos);
  for (std::string const text : {"", "host", ":1", "host:", "host:0", "host:65536", "host:1x", "::1:5", "[::1]5",
                                 "[::1", "host:-1", "no.such.host.invalid:1"})
    CHECK(said(comm::join_tcp(text, 1, 2)).find("address is ") != std::string::npos);
  TcpOptions none = loopback();
  (void)none.interfaces.list.assign("nosuch");
  auto const root = comm::get_unique_id(none);
  CHECK(root.status().code() == Errc::invalid_environment);
  CHECK(root.message().find("interfaces that are up is \"lo") != std::string::npos);
}

TEST_CASE("two jobs on one host, and two that were given one address") {
  std::vector<std::optional<Joined>> a, b;
  std::thread other([&] { a = join_by_id(comm::all_ranks(3), 3, loopback()); });
  b = join_by_id(comm::all_ranks(4), 4, loopback());
  other.join();
  REQUIRE((all_ok(a) && all_ok(b)));
  REQUIRE((meets(a) && meets(b)));

  auto probe = TcpRoot::open(loopback());
  std::string const at = "127.0.0.1:" + std::to_string(address_in(probe->id()).port());
  probe = Error{.code = Errc::invalid_argument};
  TcpOptions one = loopback(), two = loopback(milliseconds(500));
  one.job = "one";
  two.job = "two";
  std::string second_root, second_guest;
  auto joined = join_all({0, 1}, [&](int rank) {
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      second_root = comm::join_tcp(at, 0, 2, two).message();
      second_guest = comm::join_tcp(at, 1, 2, two).message();
    }
    return comm::join_tcp(at, rank, 2, one);
  });
  REQUIRE(all_ok(joined));
  CHECK(second_root.find("system error: bind is") != std::string::npos);
  CHECK(second_guest.find("job key is") != std::string::npos);
}

TEST_CASE("a rank that ends while others wait frees its place for one that is started again") {
  TcpOptions const options = loopback();
  std::vector<std::optional<Joined>> later;
  auto joined = join_by_id({0, 1}, 4, options, [&](const UniqueId& id) {
    {
      Fd const gone = connected_to(address_in(id));
      say(gone, comm::write_hello({.key = key_in(id), .rank = 2, .world = 4, .listens_at = address_in(id)}));
      std::this_thread::sleep_for(milliseconds(50));
    }
    std::this_thread::sleep_for(milliseconds(50));
    later = join_all({2, 3}, [&](int rank) { return comm::join_tcp(id, rank, 4, options); });
  });
  REQUIRE(all_ok(joined));
  REQUIRE(all_ok(later));
}

TEST_CASE("what a stranger sends is never taken for more than it is") {
  Rng random(env_number("MORI_EP_TEST_SEED", 20260701));
  SocketAddress const somewhere = SocketAddress::from(AF_INET, std::array<std::byte, 4>{}.data(), 1);
  std::vector<std::vector<std::byte>> const good = {
      comm::write_hello({.rank = 1, .world = 2, .listens_at = somewhere}),
      comm::write_table({.key = {}, .addresses = {somewhere, somewhere}}),
      comm::write_refusal({.reason = comm::Refusal::Reason::missing, .missing = {1, 2}}),
      comm::write_frame({.kind = comm::FrameKind::data, .group = 1, .round = 2}, {})};
  for (int i = 0; i < 20000; ++i) {
    auto bytes = good[static_cast<std::size_t>(random.in(0, 3))];
    for (int flips = random.in(0, 4); flips > 0; --flips)
      bytes[static_cast<std::size_t>(random.in(0, static_cast<int>(bytes.size()) - 1))] ^=
          static_cast<std::byte>(random.next() & 0xffu);
    bytes.resize(bytes.size() - static_cast<std::size_t>(random.in(0, 3) * random.in(0, 9)));
    comm::FrameReader reader;
    std::size_t const cut = static_cast<std::size_t>(random.in(0, static_cast<int>(bytes.size())));
    if (!reader.add(std::span<const std::byte>(bytes).first(cut)) ||
        !reader.add(std::span<const std::byte>(bytes).subspan(cut)))
      continue;
    for (const auto& frame : reader.frames()) {
      if (auto const hello = comm::read_hello(frame.payload); hello && hello->version == comm::kBootstrapVersion)
        CHECK(hello->listens_at.port() != 0);
      if (auto const table = comm::read_table(frame.payload))
        CHECK(frame.payload.size() == 20 + 24 * table->addresses.size());
      if (auto const refusal = comm::read_refusal(frame.payload)) CHECK(refusal->error(1).code != Errc::ok);
      if (auto const ranks = comm::read_broken(frame.payload, 4))
        for (int r : *ranks) CHECK((r >= 0 && r < 4));
    }
  }
}

}  // namespace mori_ep::test
