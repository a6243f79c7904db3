// SPDX-License-Identifier: MIT
// One thread calls both ends here, so what arrives when is decided by the seed alone.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "mori_ep/comm/local_world.hpp"
#include "mori_ep/fabric/loopback.hpp"
#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/guarded.hpp"
#include "support/loopback_world.hpp"
#include "support/requests.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using comm::Communicator;
using comm::LocalWorld;
using fabric::Completion;
using fabric::Loopback;
using fabric::LoopbackOptions;
using fabric::Operation;
using fabric::Order;
using fabric::WorkId;
using fabric::WorkRequest;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

TEST_CASE("without faults a request has arrived when its post returns") {
  LoopbackWorld<Order::in_queue_pair> world(3, 4096, {.queue_pairs = 2, .depth = 8});
  auto& end = world.end(0);
  REQUIRE(end.rank() == 0);
  REQUIRE(end.world() == 3);
  REQUIRE(end.queue_pairs() == 2);
  REQUIRE(end.depth() == 8);
  std::fill_n(world.arena(0) + kSignals, 512, std::byte{42});
  WorkRequest const requests[] = {request(Operation::put, 2, 0, kSignals, 100, 0, 1),
                                  request(Operation::put_signal, 2, 1, kSignals + 112, 16, 8, 1),
                                  request(Operation::signal, 2, 2, 0, 999, 16, 1)};
  REQUIRE(end.post(requests) == 3);
  const std::byte* there = world.arena(2) + kSignals;
  REQUIRE(Guarded::all(there, 100, std::byte{42}));
  REQUIRE(Guarded::all(there + 100, 12, std::byte{0}));
  REQUIRE(Guarded::all(there + 112, 16, std::byte{42}));
  REQUIRE(Guarded::all(there + 128, 4096 - kSignals - 128, std::byte{0}));
  REQUIRE(world.word(2, 0) == 0);
  REQUIRE(world.word(2, 8) == exec::signal_word(7, 1));
  REQUIRE(world.word(2, 16) == exec::signal_word(7, 2));
  REQUIRE(Guarded::all(world.arena(1), 4096, std::byte{0}));
  auto const completions = poll_until(end, 3);
  REQUIRE(completions.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    REQUIRE(completions[i].id == requests[i].id);
    REQUIRE(completions[i].status.ok());
  }
  Completion none[1];
  REQUIRE(end.poll(none) == 0);
  auto const& counters = end.counters(2);
  REQUIRE(counters.bytes.load() == 116);
  REQUIRE(counters.messages.load() == 3);
  REQUIRE(counters.completions.load() == 3);
  REQUIRE(counters.errors.load() == 0);
  REQUIRE(counters.refusals.load() == 0);
  REQUIRE(counters.longest_wait_ns.load() > 0);
  REQUIRE(end.counters(1).messages.load() == 0);
  // A rank may send to itself.
  WorkRequest const self[] = {request(Operation::signal, 0, 0, 0, 0, 24)};
  REQUIRE(end.post(self) == 1);
  REQUIRE(world.word(0, 24) == exec::signal_word(7, 0));
}

TEST_CASE("a full queue pair takes what it has room for, and again after a poll") {
  LoopbackWorld<Order::none> world(2, 4096, {.queue_pairs = 2, .depth = 4});
  auto& end = world.end(1);
  std::vector<WorkRequest> requests;
  for (std::uint16_t i = 0; i < 6; ++i) requests.push_back(request(Operation::signal, 0, i, 0, 0, 8u * i));
  REQUIRE(end.post(requests) == 4);
  REQUIRE(world.word(0, 24) != 0);
  REQUIRE(world.word(0, 32) == 0);
  REQUIRE(end.post(std::span(requests).subspan(4)) == 0);
  REQUIRE(end.counters(0).refusals.load() == 2);
  // The other queue pair has room of its own.
  WorkRequest const other[] = {request(Operation::signal, 0, 0, 0, 0, 64, 1)};
  REQUIRE(end.post(other) == 1);
  REQUIRE(poll_until(end, 5).size() == 5);
  REQUIRE(end.post(std::span(requests).subspan(4)) == 2);
  REQUIRE(poll_until(end, 2).size() == 2);
}

TEST_CASE("requests out of bounds are refused with field, value and limit, and nothing is written") {
  struct Case {
    const char* field;
    std::int64_t value, limit;
    int peer;
    WorkRequest request;
  };
  auto const with = [](auto change) {
    WorkRequest r = request(Operation::put_signal, 1, 5, 2048, 64, 8);
    change(r);
    return r;
  };
  std::vector<Case> const cases = {
      {"local_offset + bytes", 4112, 4096, 1, with([](WorkRequest& r) { r.local_offset = 4048; })},
      {"remote_offset + bytes", 4112, 4096, 1, with([](WorkRequest& r) { r.remote_offset = 4048; })},
      {"remote_offset + bytes", INT64_MAX, 4096, 1, with([](WorkRequest& r) { r.remote_offset = ~0ull - 15; })},
      {"local_offset + bytes", 1024 + 4096, 4096, 1,
       with([](WorkRequest& r) { r.bytes = 4096, r.local_offset = 1024, r.remote_offset = 0; })},
      {"local_offset + bytes", INT64_MAX, 4096, 1, with([](WorkRequest& r) { r.bytes = ~0ull; })},
      {"signal_offset + 8", 4100, 4096, 1, with([](WorkRequest& r) { r.signal_offset = 4092; })},
      {"signal_offset + 8", INT64_MAX, 4096, 1, with([](WorkRequest& r) { r.signal_offset = ~0ull - 7; })},
      {"signal_offset", 12, 8, 1, with([](WorkRequest& r) { r.signal_offset = 12; })},
      {"peer", 2, 1, -1, with([](WorkRequest& r) { r.id.peer = 2; })},
      {"queue_pair", 3, 1, -1, with([](WorkRequest& r) { r.id.queue_pair = 3; })}};
  for (bool const prompt : {true, false})
    for (const Case& c : cases) {
      INFO(c.field << " is " << c.value);
      LoopbackOptions options{.queue_pairs = 2, .depth = 4};
      if (!prompt) options.reorder = true, options.early_one_in = 1, options.gbps = 1;
      LoopbackWorld<Order::in_queue_pair> world(2, 4096, options);
      std::fill_n(world.arena(0), 4096, std::byte{1});
      REQUIRE(world.end(0).post(std::span(&c.request, 1)) == 1);
      auto const got = poll_until(world.end(0), 1);
      REQUIRE(got.size() == 1);
      REQUIRE(got[0].id == c.request.id);
      Complaints complaints;
      complaints.refused(got[0].status, Errc::invalid_argument, c.field, c.value, c.limit);
      REQUIRE(complaints.text() == "");
      REQUIRE(got[0].status.error().peer == c.peer);
      REQUIRE(Guarded::all(world.arena(1), 4096, std::byte{0}));
      // The queue pair has failed: it takes requests and completes them with its error. The others work.
      WorkRequest const more[] = {request(Operation::put, c.request.id.peer, 6, 2048, 16, 0, c.request.id.queue_pair)};
      REQUIRE(world.end(0).post(more) == 1);
      auto const flushed = poll_until(world.end(0), 1);
      REQUIRE(flushed.size() == 1);
      REQUIRE(flushed[0].id.sequence == 6);
      REQUIRE(flushed[0].status.error().field == std::string(c.field));
      REQUIRE(Guarded::all(world.arena(1), 4096, std::byte{0}));
      WorkRequest const good[] = {request(Operation::put, 1, 0, 2048, 16, 0, 1)};
      REQUIRE(world.end(0).post(good) == 1);
      REQUIRE(poll_until(world.end(0), 1).at(0).status.ok());
      for (int i = 0; i < 100; ++i) (void)world.end(0).poll(std::span<Completion>());
      REQUIRE(Guarded::all(world.arena(1) + 2048, 16, std::byte{1}));
    }
  // All that an arena holds may be sent.
  LoopbackWorld<Order::none> world(2, 4096, {});
  WorkRequest const whole[] = {
      with([](WorkRequest& r) { r.local_offset = r.remote_offset = 0, r.bytes = 4096, r.signal_offset = 4088; })};
  REQUIRE(world.end(0).post(whole) == 1);
  REQUIRE(poll_until(world.end(0), 1).at(0).status.ok());
}

namespace {
//! Puts to one queue pair and then a signal, from one seed: does the signal ever show before a byte that was posted
//! before it? And do the puts come in their order?
struct Seen {
  bool signal_first = false, reordered = false, parted = false;
};
template <Order Promise>
Seen watch(std::uint64_t seed, Operation last) {
  constexpr int kPuts = 4;
  constexpr std::uint64_t kBytes = 64;
  LoopbackWorld<Promise> world(2, 4096, {.depth = 16, .seed = seed, .reorder = true});
  std::fill_n(world.arena(0), 4096, std::byte{9});
  std::vector<WorkRequest> requests;
  for (int i = 0; i < kPuts; ++i)
    requests.push_back(request(Operation::put, 1, static_cast<std::uint16_t>(i), kSignals + kBytes * i, kBytes));
  requests.push_back(request(last, 1, kPuts, kSignals + kBytes * kPuts, kBytes, 8));
  REQUIRE(world.end(0).post(requests) == kPuts + 1);
  int const own = last == Operation::put_signal ? kPuts : -1;
  Seen seen;
  for (std::size_t ended = 0; ended < kPuts + 1;) {
    Completion some[8];
    ended += world.end(0).poll(some);
    bool before = true;
    for (int i = 0; i < kPuts + (own < 0 ? 0 : 1); ++i) {
      const std::byte* row = world.arena(1) + kSignals + kBytes * i;
      bool const all = Guarded::all(row, kBytes, std::byte{9}), none = Guarded::all(row, kBytes, std::byte{0});
      seen.parted = seen.parted || (!all && !none);
      seen.reordered = seen.reordered || (!none && !before);
      before = before && all;
      if (world.word(1, 8) == 0 || all) continue;
      REQUIRE(i != own);  // a put_signal's own bytes, whatever the order
      seen.signal_first = true;
    }
  }
  REQUIRE(world.word(1, 8) == exec::signal_word(7, kPuts));
  REQUIRE(Guarded::all(world.arena(1) + kSignals, kBytes * kPuts, std::byte{9}));
  return seen;
}
}  // namespace

TEST_CASE("what may be reordered is, and nothing else") {
  std::uint64_t const first = env_number("MORI_EP_TEST_SEED", 1);
  Seen any, any_in_order;
  int rash = 0;
  for (std::uint64_t seed = first; seed < first + 200; ++seed) {
    INFO("MORI_EP_TEST_SEED=" << seed);
    for (Operation const last : {Operation::signal, Operation::put_signal}) {
      Seen const in_order = watch<Order::in_queue_pair>(seed, last), loose = watch<Order::none>(seed, last);
      REQUIRE_FALSE(in_order.signal_first);
      any_in_order.reordered |= in_order.reordered, any_in_order.parted |= in_order.parted;
      any.reordered |= loose.reordered, any.parted |= loose.parted;
      rash += loose.signal_first ? 1 : 0;
    }
  }
  // Who trusts a signal of its own after puts is wrong where no order is promised, and these tests see it.
  REQUIRE(rash > 20);
  REQUIRE(any.reordered);
  REQUIRE(any.parted);
  REQUIRE(any_in_order.reordered);
  REQUIRE(any_in_order.parted);
}

TEST_CASE("every request completes, duplicates are the same again, and come in time") {
  std::uint64_t const seed = env_number("MORI_EP_TEST_SEED", 1);
  INFO("MORI_EP_TEST_SEED=" << seed);
  LoopbackWorld<Order::none> world(2, 4096,
                                   {.depth = 3,
                                    .seed = seed,
                                    .reorder = true,
                                    .most_delay = std::chrono::microseconds(20),
                                    .most_late = std::chrono::microseconds(200),
                                    .early_one_in = 3,
                                    .duplicate_one_in = 2,
                                    .full_one_in = 3});
  auto& end = world.end(0);
  constexpr int kRequests = 9000;  // the sequences wrap twice
  std::vector<int> completed(kRequests, 0);
  int posted = 0, ended = 0, again = 0, out_of_order = 0, last = -1;
  std::multiset<int> in_flight;
  for (auto const deadline = Clock::now() + std::chrono::seconds(120); ended < kRequests;) {
    REQUIRE(Clock::now() < deadline);
    std::vector<WorkRequest> batch;
    for (int i = posted; i < std::min(posted + 4, kRequests); ++i) {
      batch.push_back(request(Operation::put_signal, 1, static_cast<std::uint16_t>(i & 0xfff), kSignals, 32, 8));
      batch.back().id.epoch = static_cast<std::uint32_t>(i);
    }
    std::size_t const taken = end.post(batch);
    for (std::size_t i = 0; i < taken; ++i) in_flight.insert(posted++);
    REQUIRE(in_flight.size() <= 3);
    Completion some[2];
    std::size_t const n = end.poll(some);
    for (std::size_t i = 0; i < n; ++i) {
      int const which = static_cast<int>(some[i].id.epoch);
      REQUIRE(which < posted);
      REQUIRE(some[i].status.ok());
      REQUIRE(static_cast<std::uint32_t>(posted - which) < 2 * fabric::kLatestDuplicate);
      int const times = ++completed[static_cast<std::size_t>(which)];
      REQUIRE(times <= 2);
      again += times == 2 ? 1 : 0;
      if (times == 2) continue;
      ++ended;
      out_of_order += which < last ? 1 : 0;
      last = which;
      in_flight.erase(which);
    }
  }
  REQUIRE(again > kRequests / 4);
  REQUIRE(out_of_order > 100);
  REQUIRE(end.counters(1).completions.load() == kRequests);
  REQUIRE(end.counters(1).refusals.load() > 100);
}

TEST_CASE("an early completion says that the source was read, and no more") {
  bool before_arrival = false;
  std::uint64_t const first = env_number("MORI_EP_TEST_SEED", 1);
  for (std::uint64_t seed = first; seed < first + 50; ++seed) {
    LoopbackWorld<Order::none> world(2, 4096, {.depth = 2, .seed = seed, .reorder = true, .early_one_in = 1});
    std::fill_n(world.arena(0), 4096, std::byte{3});
    WorkRequest const put[] = {request(Operation::put, 1, 0, kSignals, 64)};
    REQUIRE(world.end(0).post(put) == 1);
    REQUIRE(poll_until(world.end(0), 1).size() == 1);
    before_arrival |= !Guarded::all(world.arena(1) + kSignals, 64, std::byte{3});
    std::fill_n(world.arena(0), 4096, std::byte{4});
    for (int i = 0; i < 100; ++i) REQUIRE(world.end(0).poll(std::span<Completion>()) == 0);
    REQUIRE(Guarded::all(world.arena(1) + kSignals, 64, std::byte{3}));
  }
  REQUIRE(before_arrival);
  // What has completed arrives, even when its sender goes at once.
  LoopbackWorld<Order::none> world(2, 4096, {.most_delay = std::chrono::minutes(1), .early_one_in = 1});
  std::fill_n(world.arena(0), 4096, std::byte{3});
  WorkRequest const put[] = {request(Operation::put_signal, 1, 0, kSignals, 64, 8)};
  REQUIRE(world.end(0).post(put) == 1);
  REQUIRE(poll_until(world.end(0), 1).size() == 1);
  REQUIRE(world.word(1, 8) == 0);
  world.drop(0);
  REQUIRE(world.word(1, 8) == exec::signal_word(7, 0));
  REQUIRE(Guarded::all(world.arena(1) + kSignals, 64, std::byte{3}));
}

TEST_CASE("a peer that vanishes is named, with operation and epoch, and in time") {
  LoopbackOptions const options{
      .queue_pairs = 2, .depth = 8, .vanishing_rank = 1, .vanishes_after = 1, .vanish_timeout = milliseconds(50)};
  LoopbackWorld<Order::in_queue_pair> world(3, 4096, options);
  WorkRequest const before[] = {request(Operation::signal, 1, 1, 0, 0, 8)};
  REQUIRE(world.end(0).post(before) == 1);
  REQUIRE(poll_until(world.end(0), 1).at(0).status.ok());
  REQUIRE(world.word(1, 8) != 0);
  WorkRequest const its[] = {request(Operation::signal, 2, 1, 0, 0, 8), request(Operation::signal, 2, 2, 0, 0, 16)};
  REQUIRE(world.end(1).post(std::span(its).first(1)) == 1);
  REQUIRE(poll_until(world.end(1), 1).at(0).status.ok());
  REQUIRE(world.end(1).post(std::span(its).last(1)) == 1);
  auto const begin = Clock::now();
  WorkRequest const after[] = {request(Operation::put_signal, 1, 2, kSignals, 16, 16),
                               request(Operation::put, 1, 3, kSignals, 16, 0)};
  REQUIRE(world.end(0).post(after) == 2);
  WorkRequest const others[] = {request(Operation::signal, 2, 4, 0, 0, 24)};
  REQUIRE(world.end(0).post(others) == 1);
  REQUIRE(poll_until(world.end(0), 1).at(0).id.peer == 2);
  auto const failed = poll_until(world.end(0), 2);
  auto const took = Clock::now() - begin;
  REQUIRE(failed.size() == 2);
  REQUIRE(took >= milliseconds(50));
  REQUIRE(took < milliseconds(5000));
  REQUIRE(failed[0].status.message() ==
          "mori_ep: rank 0: fabric error: request is \"put_signal of epoch 7, queue pair 0\", peer rank 1. No answer: "
          "the peer or this rank has left the network. Create an operator anew, without it.");
  REQUIRE(failed[1].status.message().find("\"put of epoch 7, queue pair 0\", peer rank 1") != std::string::npos);
  REQUIRE(world.word(1, 16) == 0);
  REQUIRE(world.word(2, 8) != 0);
  REQUIRE(world.word(2, 16) == 0);  // its own second request never arrives
  REQUIRE(poll_until(world.end(1), 1).at(0).status.error().peer == 2);
  REQUIRE(world.end(0).counters(1).errors.load() == 2);
  // Another queue pair to it, later: the same.
  WorkRequest const late[] = {request(Operation::put, 1, 0, kSignals, 16, 0, 1)};
  REQUIRE(world.end(0).post(late) == 1);
  REQUIRE(poll_until(world.end(0), 1).at(0).status.code() == Errc::fabric_error);
  REQUIRE(Guarded::all(world.arena(1) + kSignals, 16, std::byte{0}));
}

TEST_CASE("the time model lets bytes follow each other and take their time") {
  // 100 bytes a microsecond: two puts of 50000 leave after 0.5 and 1 ms, and are under way for 5.
  LoopbackWorld<Order::in_queue_pair> world(2, 65536, {.latency = milliseconds(5), .gbps = 0.1});
  std::fill_n(world.arena(0), 65536, std::byte{5});
  WorkRequest const puts[] = {request(Operation::put, 1, 0, 1024, 50000),
                              request(Operation::put_signal, 1, 1, 1024, 50000, 8)};
  auto const begin = Clock::now();
  REQUIRE(world.end(0).post(puts) == 2);
  for (std::uint16_t i = 0; i < 2; ++i) {
    Completion one[1];
    while (world.end(0).poll(one) == 0) REQUIRE(Clock::now() - begin < std::chrono::seconds(5));
    REQUIRE(Clock::now() - begin >= std::chrono::microseconds(i == 0 ? 5500 : 6000));
    REQUIRE(one[0].id.sequence == i);
  }
  REQUIRE(world.word(1, 8) != 0);
}

TEST_CASE("arenas outlive their ranks' endpoints, in any order") {
  for (int first : {0, 1}) {
    auto watched = std::make_shared<std::vector<std::byte>>(64);
    std::weak_ptr<std::vector<std::byte>> const alive = watched;
    LoopbackWorld<Order::none> world(2, 4096, {}, std::move(watched));
    world.drop(first);
    REQUIRE_FALSE(alive.expired());
    WorkRequest const put[] = {request(Operation::put_signal, first, 0, kSignals, 512, 8)};
    REQUIRE(world.end(1 - first).post(put) == 1);
    REQUIRE(world.word(first, 8) != 0);
    world.drop(1 - first);
    REQUIRE(alive.expired());
  }
}

TEST_CASE("options that cannot be are refused by all ranks alike, before anything is connected") {
  struct Case {
    LoopbackOptions options[2];
    Errc code;
    const char* field;
    std::int64_t value, limit;
  };
  auto const both = [](const LoopbackOptions& o, const char* field, std::int64_t value, std::int64_t limit) {
    return Case{{o, o}, Errc::invalid_config, field, value, limit};
  };
  constexpr std::int64_t kHour = 3'600'000'000'000;
  for (const Case& c :
       {both({.queue_pairs = 0}, "queue_pairs", 0, 1), both({.queue_pairs = 65}, "queue_pairs", 65, 64),
        both({.depth = 0}, "depth", 0, 1), both({.depth = 4096}, "depth", 4096, 4095),
        both({.least_delay = milliseconds(2), .most_delay = milliseconds(1)}, "most_delay", 1'000'000, 2'000'000),
        both({.most_late = std::chrono::hours(2)}, "most_late", 2 * kHour, kHour),
        both({.full_one_in = 1}, "full_one_in", 1, 2), both({.vanishing_rank = 2}, "vanishing_rank", 2, 1),
        both({.gbps = -1}, "gbps", -1, 0), Case{{{}, {.depth = 9}}, Errc::config_mismatch, "depth", 9, 128},
        Case{{{}, {.queue_pairs = 9}}, Errc::config_mismatch, "queue_pairs", 9, 1},
        Case{{{}, {.reorder = true}}, Errc::config_mismatch, "rank with other faults", 1, Error::kNoLimit},
        Case{{{}, {.depth = -3}}, Errc::invalid_config, "depth", -3, 1}}) {
    Complaints complaints;
    Status const s = LocalWorld(2).run([&](Communicator& comm) {
      alignas(16) std::byte arena[64] = {};
      auto const end = Loopback<>::connect(comm, arena, {}, nullptr, c.options[comm.rank()]);
      complaints.refused(end.status(), c.code, c.field, c.value, c.limit);
    });
    REQUIRE(s.ok());
    REQUIRE(complaints.text() == "");
  }
  Complaints complaints;
  REQUIRE(LocalWorld(2)
              .run([&](Communicator& comm) {
                alignas(16) std::byte arena[64] = {};
                std::span<std::byte> const odd = std::span(arena).subspan(comm.rank() == 0 ? 0 : 8);
                complaints.refused(Loopback<>::connect(comm, odd, {}, nullptr).status(), Errc::invalid_argument,
                                   "arena's address modulo 16", 8, 0);
                Status const other = comm.rank() == 0
                                         ? Loopback<Order::none>::connect(comm, arena, {}, nullptr).status()
                                         : Loopback<Order::in_queue_pair>::connect(comm, arena, {}, nullptr).status();
                complaints.refused(other, Errc::config_mismatch, "order of the fabric", 1, 0);
              })
              .ok());
  REQUIRE(complaints.text() == "");
}

namespace {
//! A world of two, of which rank 1 lives elsewhere.
class Elsewhere final : public comm::Bootstrap {
 public:
  [[nodiscard]] int rank() const noexcept override { return 0; }
  [[nodiscard]] int world() const noexcept override { return 2; }
  [[nodiscard]] std::chrono::nanoseconds timeout() const noexcept override { return std::chrono::seconds(1); }
  Status all_gather(std::span<const int>, const void* send, void* recv, std::size_t bytes,
                    std::chrono::nanoseconds) noexcept override {
    if (std::exchange(met_, true)) return Error{.code = Errc::missing_rank, .peer = 1};
    // What Communicator::create() exchanges begins with the process.
    auto* const theirs = static_cast<std::byte*>(recv) + bytes;
    std::memcpy(recv, send, bytes);
    std::memcpy(theirs, send, bytes);
    theirs[0] ^= std::byte{1};
    return {};
  }

 private:
  bool met_ = false;
};
}  // namespace

TEST_CASE("a rank of another process cannot be connected to") {
  auto const comm = Communicator::create(std::make_shared<Elsewhere>());
  REQUIRE(comm.ok());
  alignas(16) std::byte arena[64] = {};
  Complaints complaints;
  complaints.refused(Loopback<>::connect(*comm, arena, {}, nullptr).status(), Errc::invalid_argument,
                     "rank of another process", 1);
  REQUIRE(complaints.text() == "");
}

}  // namespace mori_ep::test
