// SPDX-License-Identifier: MIT
// libFuzzer on what the other side of a bootstrap may send. MORI_EP_FUZZ picks the target: "parsers" (bytes into what
// reads them), "mesh" (a rank whose peers do anything) or "join" (a rank 0, or a guest, of a stranger).
// The first folder that is given as an argument is made if need be, and gets the seeds.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <sys/stat.h>

#include "mori_ep/comm/tcp_bootstrap.hpp"

namespace mori_ep::test {
namespace {

using namespace comm;
using Bytes = std::vector<std::byte>;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

//! The fuzzer's bytes, taken from the front; zeroes once they are used up.
class Source {
 public:
  Source(const std::uint8_t* data, std::size_t size) : bytes_(reinterpret_cast<const std::byte*>(data), size) {}
  [[nodiscard]] bool empty() const { return bytes_.empty(); }
  std::uint32_t below(std::uint32_t n) {
    if (bytes_.empty()) return 0;
    auto const value = std::to_integer<std::uint32_t>(bytes_.front());
    bytes_ = bytes_.subspan(1);
    return value % n;
  }
  std::span<const std::byte> some(std::size_t n) {
    auto const taken = bytes_.first(std::min(n, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() { return some(bytes_.size()); }

 private:
  std::span<const std::byte> bytes_;
};

// ---- parsers

void read_payload(const FrameReader::Frame& frame) {
  require(frame.payload.size() == frame.header.payload_bytes, "a frame is as long as its header says");
  if (auto const hello = read_hello(frame.payload); hello && hello->version == kBootstrapVersion) {
    auto const again = write_hello(*hello);
    auto const same = read_hello(std::span<const std::byte>(again).subspan(FrameHeader::kBytes));
    require(same && same->key == hello->key && same->rank == hello->rank && same->world == hello->world &&
                same->listens_at == hello->listens_at,
            "a hello that is written says what was read");
    require(!hello->listens_at.text().empty(), "an address has a text");
  }
  if (auto const table = read_table(frame.payload)) {
    require(frame.payload.size() == 20 + 24 * table->addresses.size(), "a table has no more than it says");
    for (const SocketAddress& a : table->addresses) require(a.port() != 0, "somebody listens at a table's addresses");
  }
  if (auto const refusal = read_refusal(frame.payload))
    require(refusal->error(1).message().size() < 1000, "a refusal is a line");
  if (auto const ranks = read_broken(frame.payload, 4))
    for (int r : *ranks) require(r >= 0 && r < 4, "ranks are of the world");
}

void fuzz_frames(Source in) {
  std::size_t const first = in.below(256);
  std::size_t const step = 1 + in.below(64);
  auto const bytes = in.rest();
  FrameReader whole, pieces;
  bool const sound = whole.add(bytes);
  bool same = true;
  for (std::size_t at = 0; at < bytes.size() && same;) {
    std::size_t const n = std::min(at == 0 && first != 0 ? first : step, bytes.size() - at);
    same = pieces.add(bytes.subspan(at, n));
    at += n;
    require(pieces.held() <= at * (1 + sizeof(FrameReader::Frame) / FrameHeader::kBytes), "nothing is held in advance");
  }
  require(sound == same, "a stream is sound however it is cut");
  require(whole.frames().size() == pieces.frames().size(), "frames are the same however the stream is cut");
  for (std::size_t i = 0; i < whole.frames().size(); ++i) {
    require(whole.frames()[i].payload == pieces.frames()[i].payload, "payloads, too");
    read_payload(whole.frames()[i]);
  }
  std::size_t left = pieces.frames().size();
  pieces.take([&](const FrameReader::Frame& f) { return f.header.kind == FrameKind::data && left-- > 0; });
  while (auto const frame = pieces.pop()) require(frame->header.kind != FrameKind::data, "what was taken is gone");
  require(pieces.frames().empty() && pieces.held() <= bytes.size(), "frames that are taken hold nothing");
}

void fuzz_payload(Source in) {
  FrameReader::Frame frame;
  auto const bytes = in.rest();
  frame.payload.assign(bytes.begin(), bytes.end());
  frame.header.payload_bytes = bytes.size();
  read_payload(frame);
  (void)read_header(bytes);
}

void fuzz_unique_id(Source in) {
  UniqueId id;
  auto const bytes = in.some(id.bytes.size());
  std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
  auto const content = read_unique_id(id);
  if (content && content->version == kBootstrapVersion) require(content->root.port() != 0, "an id has a port");
}

void fuzz_address(Source in) {
  auto const bytes = in.rest();
  std::string_view const text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto const place = HostAndPort::parse(text);
  if (!place.ok()) {
    require(place.status().code() == Errc::invalid_argument, "a bad address is an argument's fault");
    return;
  }
  require(!place->host.empty() && place->port != 0, "an address has a host and a port");
  require(place->host.find('\0') == std::string::npos, "the resolver sees all of the name");
  auto const again = HostAndPort::parse('[' + place->host + "]:" + std::to_string(place->port));
  require(place->host.find(']') != std::string::npos || (again.ok() && again->host == place->host), "again the same");
}

void fuzz_parsers(Source in) {
  switch (in.below(4)) {
    case 0:
      return fuzz_frames(in);
    case 1:
      return fuzz_payload(in);
    case 2:
      return fuzz_unique_id(in);
    default:
      return fuzz_address(in);
  }
}

// ---- mesh

constexpr int kWorld = 4;

//! The groups of rank 1 among which rounds are called.
std::vector<int> group(std::uint32_t choice) {
  static const std::vector<int> groups[] = {{0, 1, 2, 3}, {0, 1}, {1, 2}, {1}, {1, 2, 3}};
  return groups[choice % std::size(groups)];
}

Bytes a_frame(Source& in) {
  static constexpr std::uint64_t kRounds[] = {0, 1, 2, 3, 4, 5, ~std::uint64_t{0}, ~std::uint64_t{0} - 1};
  auto const kind = static_cast<FrameKind>(1 + in.below(6));
  auto const members = group(in.below(8));
  auto const round = kRounds[in.below(8)];
  auto const payload = in.some(in.below(64));
  return write_frame({.kind = kind, .group = comm::group_number(members), .round = round}, payload);
}

void call(Bootstrap& self, Source& in) {
  auto const members = group(in.below(8));
  std::size_t const bytes = in.below(16);
  Bytes const mine(bytes, std::byte{0x5a});
  Bytes got(members.size() * bytes, std::byte{0xee});
  Status const s = self.all_gather(members, mine.data(), got.data(), bytes);
  require(s.ok() || s.code() == Errc::missing_rank || s.code() == Errc::protocol_mismatch, "a round has few ends");
  require(s.error().peer >= -1 && s.error().peer < kWorld, "only ranks of the world are named");
  require(s.message().size() < 1000, "an error is a line");
  require(!s.ok() || members.size() == 1 || got.empty() || got.back() == std::byte{0x5a} || members.back() != 1,
          "this rank's bytes are its own");
}

//! Rank 1 of four, the others of which do what the fuzzer says; nothing waits, since there is no time to.
void fuzz_mesh(Source in) {
  std::vector<Link> links(kWorld);
  std::vector<Fd> others(kWorld);
  for (std::size_t r = 0; r < kWorld; ++r) {
    if (r == 1) continue;
    int pair[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
    links[r].socket = Fd(pair[0]);
    others[r] = Fd(pair[1]);
  }
  MeshBootstrap self(1, std::move(links), std::chrono::nanoseconds(0), in.below(2) == 0 ? kMostHeld : 2000);
  auto const send = [&](const Fd& to, std::span<const std::byte> bytes) {
    if (to.open() && !bytes.empty()) (void)!::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  };
  for (int step = 0; step < 64 && !in.empty(); ++step) {
    Fd& other = others[std::array{0, 2, 3}[in.below(3)]];
    switch (in.below(8)) {
      case 0:
        send(other, in.some(in.below(256)));
        break;
      case 1:
      case 2:
      case 3:
        send(other, a_frame(in));
        break;
      case 4:
        if (other.open()) (void)::shutdown(other.get(), in.below(2) == 0 ? SHUT_WR : SHUT_RD);
        break;
      case 5:
        other.close();
        break;
      default:
        call(self, in);
    }
  }
  call(self, in);
}

// ---- join

//! Says the fuzzer's bytes to whoever connects, or connects and says them; then goes.
class Stranger {
 public:
  explicit Stranger(std::span<const std::byte> says) : says_(says) {}
  void at(const Fd& listener) {
    pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
    (void)::poll(&ready, 1, 1000);
    say(accept_one(listener).socket);
  }
  void to(const SocketAddress& address) {
    auto socket = connect_to(address, Deadline(std::chrono::seconds(1)), WhenRefused::give_up);
    if (socket.ok()) say(*socket);
  }

 private:
  void say(const Fd& socket) {
    if (!socket.open()) return;
    if (!says_.empty()) (void)!::send(socket.get(), says_.data(), says_.size(), MSG_NOSIGNAL);
    (void)::shutdown(socket.get(), SHUT_WR);
    // Until the other side goes: no connection is left in TIME_WAIT, of which a host has so many.
    std::byte buffer[512];
    pollfd ready{.fd = socket.get(), .events = POLLIN, .revents = 0};
    while (::poll(&ready, 1, 1000) > 0 && ::recv(socket.get(), buffer, sizeof(buffer), 0) > 0) {
    }
    linger const at_once{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  }
  std::span<const std::byte> says_;
};

void judge(const Result<std::shared_ptr<Bootstrap>>& joined) {
  require(joined.ok() || joined.status().code() != Errc::ok, "a join has an end");
  require(joined.message().size() < 1000, "an error is a line");
}

//! Two ranks, so that no table's address is ever connected to.
void fuzz_join(Source in) {
  bool const as_guest = in.below(2) == 0;
  bool const framed = in.below(2) == 0;
  Bytes says;
  if (framed)
    for (int i = 0; i < 3 && !in.empty(); ++i) {
      auto const frame =
          write_frame({.kind = static_cast<FrameKind>(1 + in.below(6)), .round = in.below(2)}, in.some(in.below(128)));
      says.insert(says.end(), frame.begin(), frame.end());
    }
  auto const rest = in.rest();
  says.insert(says.end(), rest.begin(), rest.end());
  Stranger stranger(says);
  SocketAddress const any =
      SocketAddress::from(AF_INET, std::array{std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}}.data(), 0);
  TcpOptions options;
  options.timeout = std::chrono::milliseconds(5);
  if (as_guest) {
    static Fd const listener = std::move(*listen_at(any, 64));
    static SocketAddress const at = *SocketAddress::of(listener);
    std::thread other([&] { stranger.at(listener); });
    judge(join_tcp(at.text(), 1, 2, options));
    other.join();
  } else {
    auto root = TcpRoot::open({&any, 1}, options);
    require(root.ok(), "a port");
    SocketAddress const at = read_unique_id(root->id())->root;
    std::thread other([&] { stranger.to(at); });
    judge(join_tcp(std::move(*root), 2, options));
    other.join();
  }
}

// ---- seeds

Bytes operator+(Bytes a, std::span<const std::byte> b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
Bytes numbers(std::initializer_list<int> values) {
  Bytes bytes;
  for (int v : values) bytes.push_back(static_cast<std::byte>(v));
  return bytes;
}
Bytes text(std::string_view t) { return numbers({}) + std::as_bytes(std::span(t.data(), t.size())); }

std::vector<Bytes> seeds(std::string_view target) {
  std::array<std::byte, 16> const host{std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}};
  SocketAddress const here = SocketAddress::from(AF_INET, host.data(), 4000);
  SocketAddress const six = SocketAddress::from(AF_INET6, host.data(), 4000, 3);
  Bytes const frames[] = {
      write_hello({.rank = 1, .world = 2, .listens_at = here}),
      write_hello({.rank = 1, .world = 2, .listens_at = six}),
      write_table({.key = {}, .addresses = {here, six}}),
      write_refusal({.reason = Refusal::Reason::missing, .missing = {1, 2}}),
      write_frame({.kind = FrameKind::data, .group = comm::group_number(group(1)), .round = 1}, numbers({1, 2})),
      write_frame({.kind = FrameKind::taken, .group = comm::group_number(group(1)), .round = 1}, {}),
      write_frame({.kind = FrameKind::broken, .group = comm::group_number(group(0)), .round = 2},
                  numbers({2, 0, 0, 0}))};
  std::vector<Bytes> out;
  if (target == "parsers") {
    Bytes all = numbers({0, 0, 7});
    for (const Bytes& frame : frames) {
      out.push_back(numbers({0, 3, 5}) + frame);
      out.push_back(numbers({1}) + std::span(frame).subspan(FrameHeader::kBytes));
      all = all + frame;
    }
    out.push_back(all);
    // An announcement of 1 GiB, and little of it.
    ByteWriter huge;
    huge.put(FrameHeader::kMagic).put(std::uint16_t{4}).put(std::uint16_t{0}).put(kMostPayload);
    out.push_back(numbers({0, 0, 7}) + huge.take());
    SocketAddress const at = here.with_port(0);
    auto const root = TcpRoot::open({&at, 1}, {});
    if (root.ok()) out.push_back(numbers({2}) + root->id().bytes);
    for (const char* address : {"127.0.0.1:80", "[::1]:65535", "[fe80::1%eth0]:1", "host.example:8080"})
      out.push_back(numbers({3}) + text(address));
  } else if (target == "mesh") {
    // (limit) then steps of (peer, action, ...): a frame is (kind, group, round, bytes); a call is (group, bytes).
    out.push_back(
        numbers({0, 0, 1, 3, 1, 1, 2, 7, 7, 0, 1, 4, 1, 1, 0, 0, 6, 1, 2}));  // rank 0 makes round 1 of {0, 1}
    out.push_back(numbers({0, 0, 1, 5, 0, 1, 4, 2, 0, 0, 0, 0, 6, 0, 4, 0, 6, 0, 4}));  // broken, then the next
    out.push_back(numbers({1, 0, 0, 32}) + frames[4] + numbers({0, 6, 1, 2}));
    out.push_back(numbers({1, 1, 4, 0, 2, 5, 0, 6, 0, 4, 0, 6, 3, 4}));  // half closed, gone, calls
  } else {
    for (const Bytes& frame : frames) {
      out.push_back(numbers({0, 1}) + frame);
      out.push_back(numbers({1, 1}) + frame);
    }
    Bytes const meets =
        frames[2] +
        write_frame({.kind = FrameKind::data, .group = comm::group_number(std::array{0, 1}), .round = 1}, {});
    out.push_back(
        numbers({0, 1}) + meets +
        write_frame({.kind = FrameKind::taken, .group = comm::group_number(std::array{0, 1}), .round = 1}, {}));
    out.push_back(
        numbers({1, 1}) + frames[0] +
        write_frame({.kind = FrameKind::data, .group = comm::group_number(std::array{0, 1}), .round = 1}, {}));
  }
  return out;
}

std::string_view target() {
  const char* const name = std::getenv("MORI_EP_FUZZ");
  return name == nullptr ? "parsers" : name;
}

}  // namespace
}  // namespace mori_ep::test

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace mori_ep::test;
  for (int i = 1; i < *argc; ++i) {
    std::string const folder = (*argv)[i];
    struct stat found {};
    if (folder.empty() || folder.front() == '-') continue;
    if (::stat(folder.c_str(), &found) == 0 && !S_ISDIR(found.st_mode)) return 0;  // a case to run again
    (void)::mkdir(folder.c_str(), 0777);
    int number = 0;
    for (const Bytes& seed : seeds(target()))
      std::ofstream(folder + "/seed_" + std::to_string(number++), std::ios::binary)
          .write(reinterpret_cast<const char*>(seed.data()), static_cast<std::streamsize>(seed.size()));
    break;
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace mori_ep::test;
  static std::string_view const what = target();
  Source const in(data, size);
  what == "mesh" ? fuzz_mesh(in) : what == "join" ? fuzz_join(in) : fuzz_parsers(in);
  return 0;
}
