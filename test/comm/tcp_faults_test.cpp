// SPDX-License-Identifier: MIT
// Joins when the system or the other side does not do its part: no descriptors left, peers that are gone, answers
// without end, a port that connects to itself.
#include <atomic>
#include <chrono>
#include <fstream>
#include <optional>
#include <sched.h>
#include <string>
#include <thread>
#include <vector>

#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include "mori_ep/comm/tcp_bootstrap.hpp"
#include "support/catch.hpp"
#include "support/joining.hpp"
#include "support/process_world.hpp"
#include "support/processes.hpp"

namespace mori_ep::test {

using comm::Fd;
using comm::SocketAddress;
using comm::UniqueId;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

namespace {

SocketAddress local(std::uint16_t port) {
  std::byte const bytes[] = {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
  return SocketAddress::from(AF_INET, bytes, port);
}

struct Said {
  char text[300] = "";
  int code = -1;
};
//! What a join in a process of few descriptors comes to.
void join_with_descriptors(rlim_t most, comm::TcpRoot root, int world, std::chrono::nanoseconds timeout, Said& said) {
  rlimit const both{.rlim_cur = most, .rlim_max = most};
  (void)::setrlimit(RLIMIT_NOFILE, &both);
  auto const joined = comm::join_tcp(std::move(root), world, loopback(timeout));
  std::strncpy(said.text, joined.message().c_str(), sizeof(said.text) - 1);
  said.code = static_cast<int>(joined.status().code());
}

//! A rank 0 that greets one guest with `answer`, called with the connection until it says true.
Joined join_somebody(int rank, int world, const std::function<bool(const Fd&)>& answer) {
  auto const listener = comm::listen_at(local(0), 4);
  SocketAddress const at = *SocketAddress::of(*listener);
  std::atomic<bool> done{false};
  std::thread other([&] {
    pollfd ready{.fd = listener->get(), .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, 5000);
    Fd const guest = comm::accept_one(*listener).socket;
    while (!done && !answer(guest)) {
    }
    while (!done) std::this_thread::sleep_for(milliseconds(1));
  });
  auto joined = comm::join_tcp(at.text(), rank, world, loopback());
  done = true;
  other.join();
  return joined;
}

}  // namespace

TEST_CASE("strangers that take all of rank 0's descriptors keep no rank out") {
  SharedArray<Said> said(1);
  auto root = comm::get_unique_id(loopback());
  REQUIRE(root.ok());
  UniqueId const id = root->id();
  Fork first([&] { join_with_descriptors(64, std::move(*root), 2, seconds(20), said[0]); });
  root = Error{.code = Errc::invalid_argument};
  std::vector<Fd> strangers;
  for (int i = 0; i < 200; ++i) strangers.push_back(connected_to(address_in(id)));
  auto const joined = comm::join_tcp(id, 1, 2, loopback(seconds(20)));
  CHECK(joined.message() == "ok");
  CHECK(first.wait() == 0);
  CHECK(std::string(said[0].text) == "ok");
}

TEST_CASE("rank 0 says so when it has not as many descriptors as there are ranks") {
  SharedArray<Said> said(1);
  auto root = comm::get_unique_id(loopback());
  REQUIRE(root.ok());
  UniqueId const id = root->id();
  Fork first([&] { join_with_descriptors(40, std::move(*root), 60, milliseconds(500), said[0]); });
  root = Error{.code = Errc::invalid_argument};
  std::vector<Fd> ranks;
  for (int r = 1; r < 60; ++r) {
    ranks.push_back(connected_to(address_in(id)));
    say(ranks.back(), comm::write_hello({.key = key_in(id), .rank = r, .world = 60, .listens_at = address_in(id)}));
  }
  CHECK(first.wait() == 0);
  INFO(said[0].text);
  CHECK(std::string(said[0].text).find("rank 0: system error in join: accept is \"Too many open files\"") !=
        std::string::npos);
  CHECK(std::string(said[0].text).find("ulimit -n") != std::string::npos);
}

TEST_CASE("guests that were refused hold none of rank 0's descriptors for long") {
  auto joined = join_by_id({0, 1}, 2, loopback(), [&](const UniqueId&) {});
  REQUIRE(all_ok(joined));
  int most = 0, told = 0;
  int const before = entries_of("/proc/self/fd");
  auto alone = join_by_id({0}, 2, loopback(milliseconds(1500)), [&](const UniqueId& id) {
    UniqueId other = id;
    other.bytes[9] ^= std::byte{1};
    for (int i = 0; i < 300; ++i) {
      told += comm::join_tcp(other, 1, 2, loopback()).message().find("job key is") != std::string::npos ? 1 : 0;
      most = std::max(most, entries_of("/proc/self/fd"));
    }
    std::vector<Fd> that_stay;  // and read nothing
    for (int i = 0; i < 300; ++i) {
      that_stay.push_back(connected_to(address_in(id)));
      say(that_stay.back(), comm::write_hello({.rank = 1, .world = 2, .listens_at = address_in(id)}));
    }
    std::this_thread::sleep_for(milliseconds(100));
    int const theirs = static_cast<int>(that_stay.size());
    most = std::max(most, entries_of("/proc/self/fd") - theirs);
  });
  CHECK(told == 300);
  CHECK(most < before + 100);
  CHECK(alone[0]->status().code() == Errc::missing_rank);
}

TEST_CASE("a guest that was let in and goes on talking loses its place") {
  Fd talks;
  std::vector<std::optional<Joined>> later;
  auto joined = join_by_id({0}, 3, loopback(), [&](const UniqueId& id) {
    talks = connected_to(address_in(id));
    say(talks, comm::write_hello({.key = key_in(id), .rank = 2, .world = 3, .listens_at = address_in(id)}));
    std::this_thread::sleep_for(milliseconds(100));
    say(talks, "and so on");
    std::this_thread::sleep_for(milliseconds(100));
    later = join_all({1, 2}, [&](int rank) { return comm::join_tcp(id, rank, 3, loopback()); });
  });
  REQUIRE(all_ok(joined));
  REQUIRE(all_ok(later));
}

TEST_CASE("a rank that ended after it greeted rank 0 is named at once by those that would connect to it") {
  auto const begin = Clock::now();
  auto const nobody = comm::stream_socket(AF_INET);  // keeps the port, and does not listen
  SocketAddress const any = local(0);
  REQUIRE(::bind(nobody->get(), any.get(), any.length()) == 0);
  std::uint16_t const closed_port = SocketAddress::of(*nobody)->port();
  auto const joined = join_somebody(2, 3, [&](const Fd& guest) {
    say(guest, comm::write_table({.key = {}, .addresses = {local(1), local(closed_port), local(1)}}));
    return true;
  });
  INFO(joined.message());
  CHECK(joined.status().code() == Errc::missing_rank);
  CHECK(joined.error().peer == 1);
  CHECK(joined.error().rank == 2);
  CHECK(Clock::now() - begin < seconds(10));
}

TEST_CASE("an answer that is too long to be rank 0's is not taken to its end") {
  comm::ByteWriter header;  // of a frame that only comes later, and then may be long
  header.put(comm::FrameHeader::kMagic)
      .put(static_cast<std::uint16_t>(comm::FrameKind::data))
      .put(std::uint16_t{0})
      .put(comm::kMostPayload)
      .put(std::uint64_t{0})
      .put(std::uint64_t{0});
  auto const bytes = header.take();
  std::vector<std::byte> const more(65536);
  bool begun = false;
  std::uint64_t sent = 0;
  auto const joined = join_somebody(1, 2, [&](const Fd& guest) {
    if (!begun) say(guest, bytes);
    begun = true;
    auto const n = ::send(guest.get(), more.data(), more.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    sent += n > 0 ? static_cast<std::uint64_t>(n) : 0;
    return n < 0 && errno != EAGAIN;
  });
  CHECK(joined.message().find("protocol mismatch in join: answer is \"other bytes\", peer rank 0.") !=
        std::string::npos);
  CHECK(sent > comm::kMostGreeting);
  CHECK(sent < comm::kMostPayload / 4);
}

TEST_CASE("a socket that would connect to itself does not, and leaves the port to who comes for it") {
  SharedArray<Said> said(1);
  Fork alone([&] {
    Said& mine = said[0];
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWNET) != 0) return;
    Fd const any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq loop{};
    std::strcpy(loop.ifr_name, "lo");
    loop.ifr_flags = IFF_UP | IFF_RUNNING;
    if (::ioctl(any.get(), SIOCSIFFLAGS, &loop) != 0) return;
    std::ofstream ports("/proc/sys/net/ipv4/ip_local_port_range");
    ports << "40000 40001" << std::endl;
    if (!ports) return;
    // Half of all attempts take the other port for their own, which is refused.
    auto const nobody = comm::connect_to(local(40000), comm::Deadline(milliseconds(400)));
    mine.code = nobody.ok() ? 1 : static_cast<int>(nobody.error().value);
    auto const listener = comm::listen_at(local(40000), 1);
    std::strncpy(mine.text, listener.message().c_str(), sizeof(mine.text) - 1);
  });
  REQUIRE(alone.wait() == 0);
  if (said[0].code == -1) {
    WARN("skipped: this user may make no network namespace");
    return;
  }
  CHECK((said[0].code == ECONNREFUSED || said[0].code == EADDRNOTAVAIL));
  CHECK(std::string(said[0].text) == "ok");
}

TEST_CASE("a host with several addresses: rank 0 listens where it can, others find it there") {
  // 192.0.2.1 is nobody's (RFC 5737), so no rank 0 can listen there; where nothing listens, a guest tries the next.
  auto const nobodys = SocketAddress::parse("192.0.2.1:1").value().front();
  auto const free = comm::listen_at(local(0), 1);
  REQUIRE(free.ok());
  auto const here = SocketAddress::of(*free).value().with_port(0);
  std::vector<SocketAddress> const places{nobodys, here};
  auto root = comm::TcpRoot::open(places, {});
  REQUIRE(root.message() == "ok");
  auto const content = comm::read_unique_id(root->id());
  REQUIRE(content.has_value());
  std::vector<SocketAddress> const seen{local(1), content->root, local(1)};
  auto const found = comm::connect_to(seen, comm::Deadline(std::chrono::seconds(5)));
  CHECK(found.message() == "ok");
  CHECK(!comm::TcpRoot::open(std::vector{nobodys, nobodys}, {}).ok());
  // An address that somebody else has must not be passed over: others would find them there.
  auto const taken = SocketAddress::of(*free).value();
  auto const refused = comm::TcpRoot::open(std::vector{here, taken, nobodys}, {});
  CHECK(refused.error().value == EADDRINUSE);
  CHECK(refused.message().find(taken.text()) != std::string::npos);
  std::vector<SocketAddress> const closed{local(1), local(1)};
  auto const begin = std::chrono::steady_clock::now();
  auto const nowhere = comm::connect_to(closed, comm::Deadline(milliseconds(200)));
  CHECK(nowhere.error().value == ECONNREFUSED);
  CHECK(std::chrono::steady_clock::now() - begin >= milliseconds(200));
}

TEST_CASE("addresses: what is none, and link-local ones of another host") {
  using namespace std::string_view_literals;
  for (std::string_view const bad : {"127.0.0.1\0x:80"sv, "a b:1"sv, "a\n:1"sv, "[]:1"sv}) {
    auto const place = comm::HostAndPort::parse(bad);
    CHECK(place.status().code() == Errc::invalid_argument);
    CHECK(SocketAddress::parse(bad).status().code() == Errc::invalid_argument);
  }
  auto const place = comm::HostAndPort::parse("[fe80::1%lo]:00080");
  REQUIRE(place.ok());
  CHECK(place->host == "fe80::1%lo");
  CHECK(place->port == 80);

  SocketAddress const theirs = SocketAddress::parse("[fe80::1]:80").value().front();
  std::array<std::byte, 16> const bytes = theirs.bytes();
  SocketAddress const there = SocketAddress::from(AF_INET6, bytes.data(), 80, 7);
  SocketAddress const near = SocketAddress::from(AF_INET6, bytes.data(), 9, 3);
  CHECK(there.seen_beside(near).scope() == 3);
  CHECK(there.seen_beside(near).port() == 80);
  CHECK(there.seen_beside(local(9)).scope() == 7);
  SocketAddress const global = SocketAddress::parse("[2001:db8::1]:80").value().front();
  CHECK(global.seen_beside(near).scope() == 0);
  CHECK(comm::join_tcp("127.0.0.1:1", 1, 100000).message().find("world is 100000, limit 43689") != std::string::npos);
}

}  // namespace mori_ep::test
