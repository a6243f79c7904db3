// SPDX-License-Identifier: MIT
//! @file How processes of a job find each other over TCP: all greet rank 0, learn where the others listen, and connect
//!       to each. When everybody has, nobody listens any more.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "mori_ep/comm/frame.hpp"
#include "mori_ep/comm/hash.hpp"
#include "mori_ep/comm/link.hpp"
#include "mori_ep/comm/mesh_bootstrap.hpp"
#include "mori_ep/comm/random_bytes.hpp"
#include "mori_ep/comm/socket.hpp"

namespace mori_ep::comm {

//! @brief What the application carries from rank 0 to the others by any means: where rank 0 listens, and the job's key.
//!        Plain bytes.
struct UniqueId {
  static constexpr std::size_t kBytes = 128;
  std::array<std::byte, kBytes> bytes{};
  friend bool operator==(const UniqueId&, const UniqueId&) = default;
};

//! @brief What a unique id says. Its version has its place in every version's.
struct UniqueIdContent {
  std::uint32_t version = 0;
  JobKey key{};
  SocketAddress root;
};
//! @brief Nothing when the bytes are no id; of another version's, only that is known.
[[nodiscard]] inline std::optional<UniqueIdContent> read_unique_id(const UniqueId& id) noexcept {
  ByteReader in(id.bytes);
  if (in.take<std::uint32_t>() != FrameHeader::kMagic) return {};
  UniqueIdContent content;
  content.version = in.take<std::uint32_t>();
  if (content.version != kBootstrapVersion) return content;
  content.key = in.take_bytes<16>();
  auto const root = take_address(in);
  if (!root) return {};
  content.root = *root;
  return content;
}

struct TcpOptions {
  std::chrono::nanoseconds timeout = std::chrono::seconds(300);  //!< of the join, then of each collective call
  NameFilter interfaces{.list = {}, .prefixes = true};           //!< that a unique id may name
  std::string_view job = {};  //!< joining by address: a name that all ranks give, so that two jobs that are given one
                              //!< address tell each other apart

  TcpOptions() = default;
  //! @brief As MORI_BOOTSTRAP_TIMEOUT and MORI_SOCKET_IFNAME say.
  explicit TcpOptions(const Environment& environment) noexcept
      : timeout(environment.bootstrap_timeout), interfaces(environment.socket_interfaces) {}
};

//! @brief Rank 0's listening end, from before the join until all have come.
class TcpRoot {
 public:
  //! @brief Listens at an address of this host, at a port that is free: for a unique id.
  static Result<TcpRoot> open(const TcpOptions& options) {
    auto address = local_address(options.interfaces);
    if (!address.ok()) return address.status();
    return open_at(*address);
  }
  //! @brief Listens at all of the given addresses that are this host's: for ranks that were given the same, and the name
  //!        of the job for a key. An error when one of them is taken: others would find who holds it.
  static Result<TcpRoot> open(std::span<const SocketAddress> addresses, const TcpOptions& options) {
    std::vector<Fd> listeners;
    Status elsewhere;
    for (const SocketAddress& address : addresses) {
      auto listener = listen_at(address, 4096);
      if (listener.ok())
        listeners.push_back(std::move(*listener));
      else if (listener.error().value == EADDRNOTAVAIL)
        elsewhere = listener.status();
      else
        return listener.status();
    }
    if (listeners.empty()) return elsewhere;
    auto root = of(std::move(listeners));
    if (!root.ok()) return root;
    root->asks_ = key_of(options.job);
    return root;
  }
  [[nodiscard]] static JobKey key_of(std::string_view job) noexcept {
    JobKey key{};
    std::uint64_t const hash = hash_text(job);
    if (!job.empty()) std::memcpy(key.data(), &hash, sizeof(hash));
    return key;
  }

  //! @brief Does anything listen where the id says?
  [[nodiscard]] static bool answers(const UniqueId& id) noexcept {
    auto const content = read_unique_id(id);
    return content && content->version == kBootstrapVersion &&
           connect_to(content->root, Deadline(std::chrono::milliseconds(250)), WhenRefused::give_up).ok();
  }
  [[nodiscard]] UniqueId id() const {
    ByteWriter out;
    out.put(FrameHeader::kMagic).put(kBootstrapVersion).put(std::span<const std::byte>(key_));
    put_address(out, address_);
    UniqueId id;
    auto const bytes = out.take();
    std::copy(bytes.begin(), bytes.end(), id.bytes.begin());
    return id;
  }

 private:
  friend class TcpJoin;
  static Result<TcpRoot> open_at(const SocketAddress& address) {
    auto listener = listen_at(address, 4096);
    if (!listener.ok()) return listener.status();
    std::vector<Fd> listeners;
    listeners.push_back(std::move(*listener));
    return of(std::move(listeners));
  }
  static Result<TcpRoot> of(std::vector<Fd> listeners) {
    TcpRoot root;
    auto bound = SocketAddress::of(listeners.front());
    if (!bound.ok()) return bound.status();
    root.listeners_ = std::move(listeners);
    root.address_ = *bound;
    if (Status s = draw(root.key_); !s.ok()) return s;
    root.asks_ = root.key_;
    return Result<TcpRoot>(std::move(root));
  }

  std::vector<Fd> listeners_;
  SocketAddress address_;
  JobKey key_{};   // of this join
  JobKey asks_{};  // what a guest must say
};

//! @brief The state of one rank's join.
class TcpJoin {
 public:
  using Joined = Result<std::shared_ptr<Bootstrap>>;

  //! @brief `timeout` of the calls after the join, and of the join where it has no `deadline` of its own.
  TcpJoin(int rank, int world, std::chrono::nanoseconds timeout, std::optional<Deadline> deadline = {})
      : rank_(rank),
        world_(world),
        timeout_(timeout),
        deadline_(deadline.value_or(Deadline(timeout))),
        links_(static_cast<std::size_t>(world)) {}

  [[nodiscard]] static Status check(int rank, int world) noexcept {
    if (world < 1)
      return Error{.code = Errc::invalid_argument,
                   .phase = Phase::join,
                   .field = "world",
                   .value = world,
                   .limit = 1,
                   .hint = "A world has at least one rank."};
    if (world > kMostRanks)
      return Error{.code = Errc::invalid_argument,
                   .phase = Phase::join,
                   .field = "world",
                   .value = world,
                   .limit = kMostRanks,
                   .hint = "Rank 0's answer has no room for more ranks."};
    if (rank < 0 || rank >= world)
      return Error{.code = Errc::invalid_argument,
                   .phase = Phase::join,
                   .field = "rank",
                   .value = rank,
                   .limit = world - 1,
                   .hint = "Ranks are 0 to world - 1."};
    return {};
  }

  //! @brief While it waits for rank 0's answer: true of `moved` says that rank 0 is elsewhere, and ends the wait.
  TcpJoin&& unless(std::function<bool()> moved) && {
    moved_ = std::move(moved);
    return std::move(*this);
  }

  //! @brief Rank 0: waits for all others, and tells them of each other.
  Joined as_root(TcpRoot root) {
    Table table{.key = root.key_, .addresses = {}};
    table.addresses.assign(static_cast<std::size_t>(world_), root.address_);
    int absent = world_ - 1;
    while (absent > 0) {
      if (deadline_.passed()) return refuse_all();
      for (const Fd& listener : root.listeners_) accept_guests(listener);
      for (auto& [guest, patience] : guests_.waiting()) {
        auto const hello = greeting(guest);
        if (!hello) continue;
        if (Status s = admit(*hello, root); !s.ok()) {
          send_off(guest, refusal_);
          refused_a_rank_ = refused_a_rank_ || refusal_.reason != Refusal::Reason::key;
          continue;
        }
        auto const r = static_cast<std::size_t>(hello->rank);
        table.addresses[r] = hello->listens_at;
        links_[r] = std::move(guest);
        --absent;
      }
      // A rank that has ended since frees its place; one that is started again may take it.
      for (std::size_t r = 1; r < links_.size(); ++r)
        if (links_[r].open() && !waits(links_[r])) {
          links_[r].socket.close();
          ++absent;
        }
      guests_.forget_closed();
      if (absent > 0) wait(root.listeners_, true);
    }
    auto const bytes = write_table(table);
    // A rank that has ended by now is named to all in the first round; rank 0's own end would be blamed for it.
    for (std::size_t r = 1; r < links_.size(); ++r)
      if (!send_all(links_[r], bytes) && deadline_.passed()) return lost(static_cast<int>(r));
    return meet();
  }

  //! @brief Another rank: greets rank 0, then connects to the ranks below it and is connected to by those above.
  //! `root`: the addresses at one of which rank 0 listens.
  Joined as_guest(std::span<const SocketAddress> root, const JobKey& key) {
    auto to_root = connect_to(root, deadline_);
    if (!to_root.ok()) {
      Error e = to_root.error();
      if (e.value == ECONNREFUSED || e.value == ETIMEDOUT)
        e = Error{.code = Errc::missing_rank,
                  .peer = 0,
                  .hint = "Nothing answers where rank 0 should listen. Is rank 0 up, and its address reachable?"};
      return at_join(e);
    }
    links_[0].socket = std::move(*to_root);
    auto here = SocketAddress::of(links_[0].socket);
    if (!here.ok()) return at_join(here.error());
    auto listener = listen_at(here->with_port(0), world_);
    if (!listener.ok()) return at_join(listener.error());
    auto listens_at = SocketAddress::of(*listener);
    if (!listens_at.ok()) return at_join(listens_at.error());
    Hello hello{.key = key, .rank = rank_, .world = world_, .listens_at = *listens_at};
    if (!send_all(links_[0], write_hello(hello))) return lost(0);
    auto table = await_table();
    if (!table.ok()) return table.status();
    hello.key = table->key;
    auto const greet = write_hello(hello);
    for (int r = 1; r < rank_; ++r) {
      // It listened before it greeted rank 0: where it refuses, its process has ended.
      auto socket =
          connect_to(table->addresses[static_cast<std::size_t>(r)].seen_beside(*here), deadline_, WhenRefused::give_up);
      if (!socket.ok()) return unreachable(r, socket.error());
      Link& link = links_[static_cast<std::size_t>(r)];
      link.socket = std::move(*socket);
      if (!send_all(link, greet)) return lost(r);
    }
    int absent = world_ - 1 - rank_;
    while (absent > 0) {
      if (deadline_.passed() || ended(links_[0])) return without_those_above();
      accept_guests(*listener);
      for (auto& [guest, patience] : guests_.waiting()) {
        auto const from = greeting(guest);
        if (!from) continue;
        auto const r = static_cast<std::size_t>(from->rank);
        bool const expected = from->version == kBootstrapVersion && from->key == table->key && from->rank > rank_ &&
                              from->rank < world_ && !links_[r].open();
        if (!expected) {
          guest.socket.close();
          continue;
        }
        links_[r] = std::move(guest);
        --absent;
      }
      guests_.forget_closed();
      if (absent > 0) wait({&*listener, 1}, false);
    }
    return meet();
  }

 private:
  static constexpr std::size_t kMostRefused = 64;

  Joined at_join(Error error) const {
    error.phase = Phase::join;
    error.rank = rank_;
    return error;
  }
  Joined lost(int peer) const {
    return at_join({.code = Errc::missing_rank, .peer = peer, .hint = "Its process has ended, or refuses this one."});
  }
  Joined unreachable(int peer, Error error) const {
    if (error.value == ECONNREFUSED || error.value == ECONNRESET) return lost(peer);
    error.peer = peer;
    return at_join(error);
  }

  void accept_guests(const Fd& listener) {
    auto const spare = [&] {
      if (refused_.empty()) return false;
      refused_.erase(refused_.begin());
      return true;
    };
    guests_.accept(listener, spare, [](const Fd& socket) {
      send_at_once(socket);
      return true;
    });
  }
  //! The guest's hello once it is there. Whoever says anything else is a stranger: closed.
  std::optional<Hello> greeting(Link& guest) {
    std::byte buffer[512];
    while (guest.open() && guest.reader.frames().empty()) {
      auto const n = ::recv(guest.socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
      if (n <= 0 || !guest.reader.add({buffer, static_cast<std::size_t>(n)}) ||
          (guest.reader.frames().empty() && guest.reader.held() > sizeof(buffer)))
        guest.socket.close();
    }
    if (!guest.open()) return {};
    auto const first = guest.reader.pop();
    auto hello = first->header.kind == FrameKind::hello ? read_hello(first->payload) : std::nullopt;
    if (!hello) guest.socket.close();
    return hello;
  }
  //! May it join? Else `refusal_` says why not.
  Status admit(const Hello& hello, const TcpRoot& root) {
    auto const refuse = [&](Refusal::Reason reason, std::int64_t value, std::int64_t limit) {
      refusal_ = {.reason = reason, .value = value, .limit = limit, .missing = {}};
      return Status{refusal_.error(rank_)};
    };
    if (hello.version != kBootstrapVersion) return refuse(Refusal::Reason::version, hello.version, kBootstrapVersion);
    if (hello.key != root.asks_) return refuse(Refusal::Reason::key, 0, 0);
    if (hello.world != world_) return refuse(Refusal::Reason::world, hello.world, world_);
    if (hello.rank < 1 || hello.rank >= world_) return refuse(Refusal::Reason::rank, hello.rank, world_ - 1);
    if (links_[static_cast<std::size_t>(hello.rank)].open()) return refuse(Refusal::Reason::taken, hello.rank, 0);
    return {};
  }
  //! Rank 0 says why, and lets go. What the guest sent is read, or its end would lose the answer.
  void send_off(Link& guest, const Refusal& refusal) {
    (void)send_all(guest, write_refusal(refusal));
    (void)::shutdown(guest.socket.get(), SHUT_WR);
    refused_.push_back(std::move(guest.socket));
    if (refused_.size() > kMostRefused) refused_.erase(refused_.begin());
  }
  Joined refuse_all() {
    Refusal refusal{.reason = Refusal::Reason::missing, .missing = {}};
    for (int r = 1; r < world_; ++r)
      if (!links_[static_cast<std::size_t>(r)].open()) refusal.missing.push_back(r);
    auto const bytes = write_refusal(refusal);
    for (const Link& link : links_)
      if (link.open()) (void)send_all(link, bytes);
    if (guests_.exhausted()) return at_join(accept_error());
    Error error = refusal.error(rank_);
    if (refused_a_rank_)
      error.hint =
          "A rank that came was refused: it was given another world, a rank of its own it did not have, or another "
          "version. Its own error says which.";
    return at_join(error);
  }
  Joined without_those_above() const {
    if (guests_.exhausted()) return at_join(accept_error());
    std::vector<int> absent;
    for (int r = rank_ + 1; r < world_; ++r)
      if (!links_[static_cast<std::size_t>(r)].open()) absent.push_back(r);
    return at_join(Error{.code = Errc::missing_rank,
                         .peer = absent.empty() ? 0 : absent.front(),
                         .hint = "They did not connect in time. Can every rank reach every other's address?"}
                       .with_text(list_of(absent)));
  }

  Result<Table> await_table() {
    // Rank 0's own deadline is about as far: its answer, which names all that are missing, may be on its way.
    Deadline const patience(deadline_.left() + std::chrono::milliseconds(500));
    FrameReader& reader = links_[0].reader;
    std::byte buffer[4096];
    while (reader.frames().empty()) {
      if (moved_ && moved_()) return lost(0).status();
      auto const n = ::recv(links_[0].socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        if (patience.passed())
          return at_join({.code = Errc::missing_rank,
                          .peer = 0,
                          .hint = "Rank 0 does not answer: it, or ranks it waits for, have not come in time."})
              .status();
        pollfd ready{.fd = links_[0].socket.get(), .events = POLLIN, .revents = 0};
        (void)::poll(&ready, 1, patience.left_ms(moved_ ? 100 : 1000));
        continue;
      }
      if (n <= 0) return lost(0).status();
      if (!reader.add({buffer, static_cast<std::size_t>(n)}) ||
          (reader.frames().empty() && reader.held() > FrameHeader::kBytes + kMostGreeting))
        return at_join(Error{.code = Errc::protocol_mismatch,
                             .peer = 0,
                             .field = "answer",
                             .hint = "What listens there is no rank 0 of mori_ep. Check the address."}
                           .with_text("other bytes"))
            .status();
    }
    FrameReader::Frame const answer = *reader.pop();
    if (answer.header.kind == FrameKind::refusal)
      if (auto const refusal = read_refusal(answer.payload)) return refusal->error(rank_);
    auto table = answer.header.kind == FrameKind::table ? read_table(answer.payload) : std::nullopt;
    if (!table || table->addresses.size() != static_cast<std::size_t>(world_))
      return at_join({.code = Errc::protocol_mismatch,
                      .peer = 0,
                      .field = "ranks in the answer",
                      .value = table ? static_cast<std::int64_t>(table->addresses.size()) : 0,
                      .limit = world_,
                      .hint = "Rank 0 runs another version: build all ranks from one."})
          .status();
    return *table;
  }

  //! A guest that has been let in says nothing before it has the table.
  static bool waits(const Link& link) noexcept {
    std::byte one;
    auto const n = ::recv(link.socket.get(), &one, 1, MSG_PEEK | MSG_DONTWAIT);
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  }
  static bool ended(const Link& link) noexcept {
    std::byte one;
    auto const n = ::recv(link.socket.get(), &one, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
  }
  bool send_all(const Link& link, std::span<const std::byte> bytes) const {
    while (!bytes.empty()) {
      auto const n = ::send(link.socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(n));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
        if (deadline_.passed()) return false;
        pollfd ready{.fd = link.socket.get(), .events = POLLOUT, .revents = 0};
        (void)::poll(&ready, 1, deadline_.left_ms());
      } else {
        return false;
      }
    }
    return true;
  }
  void wait(std::span<const Fd> listeners, bool links_too) const {
    std::vector<pollfd> ready;
    guests_.wait_for(ready, listeners);
    for (const Link& link : links_)
      if (link.open() && links_too) ready.push_back({.fd = link.socket.get(), .events = POLLIN, .revents = 0});
    (void)::poll(ready.data(), static_cast<nfds_t>(ready.size()), deadline_.left_ms(guests_.most_ms()));
  }

  //! All connections are there on this side; the first round says that they are on every side.
  Joined meet() {
    auto mesh = std::make_shared<MeshBootstrap>(rank_, std::move(links_), timeout_);
    auto const left = deadline_.left() + std::chrono::milliseconds(500);  // as await_table(): ranks' clocks differ
    if (Status s = mesh->all_gather(all_ranks(world_), nullptr, nullptr, 0, left); !s.ok()) return at_join(s.error());
    return std::shared_ptr<Bootstrap>(std::move(mesh));
  }

  int rank_, world_;
  std::chrono::nanoseconds timeout_;
  Deadline deadline_;
  std::vector<Link> links_;
  Guests guests_;
  std::vector<Fd> refused_;  // told why not, and perhaps about to read it
  std::function<bool()> moved_;
  Refusal refusal_;
  bool refused_a_rank_ = false;  // and no stranger
};

}  // namespace mori_ep::comm
