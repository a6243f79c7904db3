// SPDX-License-Identifier: MIT
// Kernels, rings, proxies and a network together, every rank with threads of its own.
#include <atomic>
#include <chrono>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mori_ep/comm/local_world.hpp"
#include "mori_ep/exec/host/host.hpp"
#include "mori_ep/fabric/proxy.hpp"
#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/loopback_world.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

using exec::WaitEnd;
using exec::WaitLimits;
using exec::host::Context;
using fabric::Fault;
using fabric::LoopbackOptions;
using fabric::Operation;
using fabric::Order;
using fabric::WorkRequest;
using Ring = fabric::CommandRing<exec::Host>;
using exec::host::Stream;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

//! What this test's kernels are told of a fault: not zero, and by it the request.
std::uint64_t notice_of(const fabric::WorkId& id) { return id.packed() | std::uint64_t{1} << 63; }

constexpr int kRuns = 4;             // at most, from a rank to a rank in a round
constexpr std::uint64_t kRun = 256;  // bytes of a run, at most

//! The arena: an acknowledgement from each rank, a signal for each run of each rank, the runs that come, those that go.
struct Map {
  int world;
  [[nodiscard]] std::uint64_t ack(int from) const { return 8 * std::uint64_t(from); }
  [[nodiscard]] std::uint64_t signal(int from, int run) const { return 8 * (std::uint64_t(world) + index(from, run)); }
  [[nodiscard]] std::uint64_t came(int from, int run) const { return 1024 + kRun * index(from, run); }
  [[nodiscard]] std::uint64_t goes(int to, int run) const { return came(world, 0) + kRun * index(to, run); }
  [[nodiscard]] std::uint64_t bytes() const { return goes(world, 0); }

 private:
  [[nodiscard]] static std::uint64_t index(int rank, int run) {
    return std::uint64_t(rank) * kRuns + std::uint64_t(run);
  }
};

//! What `from` sends to `to` in a round; both know.
struct Message {
  int runs;
  bool one_signal;  // after all runs, on one queue pair: where the fabric keeps order
  struct Run {
    std::uint64_t bytes;
    int queue_pair;
  } run[kRuns];

  static Message of(std::uint64_t seed, std::uint32_t round, int from, int to, int queue_pairs, Order order) {
    Rng rng(mix(seed, round, std::uint64_t(from), std::uint64_t(to)));
    Message m{.runs = rng.in(1, kRuns), .one_signal = order == Order::in_queue_pair && rng.one_in(2), .run = {}};
    int const shared = rng.in(0, queue_pairs - 1);
    for (auto& run : m.run) {
      run.bytes = 16 * std::uint64_t(rng.in(0, int(kRun / 16)));
      run.queue_pair = m.one_signal ? shared : rng.in(0, queue_pairs - 1);
    }
    return m;
  }
};

std::uint64_t word_of(std::uint64_t seed, std::uint32_t round, int from, int to, int run, std::uint64_t at) {
  return mix(seed + at, round, std::uint64_t(from), std::uint64_t(to * kRuns + run));
}

//! One rank's part in some rounds, as a kernel: each block sends to its share of the ranks, then receives from it.
struct Exchange {
  Map map;
  int rank, queue_pairs;
  std::uint64_t seed;
  std::uint32_t first_round, rounds;
  Order order;
  std::byte* arena;
  const fabric::CommandRingRef* rings;
  int num_rings;
  WaitLimits limits;
  std::atomic<int>* wrong;
  std::atomic<std::uint64_t>* pushed;

  void operator()(Context& ctx) const {
    std::uint32_t last[64] = {};
    bool sent[64] = {};
    for (std::uint32_t round = first_round; round != first_round + rounds; ++round) {
      for (int to = ctx.block(); to < map.world; to += ctx.blocks()) {
        if (round != first_round && !arrived(ctx, map.ack(to), round - 1)) return;
        // What was sent last has left: its source may be written.
        if (sent[to] && ring(ctx).await_end(ctx, last[to], limits).end != WaitEnd::arrived) return fail();
        if (!send(ctx, to, round, last[to])) return fail();
        sent[to] = true;
      }
      for (int from = ctx.block(); from < map.world; from += ctx.blocks())
        if (!receive(ctx, from, round)) return fail();
    }
  }

 private:
  void fail() const { ++*wrong; }
  const fabric::CommandRingRef& ring(Context& ctx) const { return rings[ctx.block() % num_rings]; }
  std::uint64_t* words(std::uint64_t offset) const { return reinterpret_cast<std::uint64_t*>(arena + offset); }

  bool arrived(Context& ctx, std::uint64_t offset, std::uint32_t round) const {
    return ctx.wait(words(offset), round, limits, exec::WaitOrder::acquire).end == WaitEnd::arrived;
  }
  bool push(Context& ctx, const WorkRequest& request, std::uint32_t* sequence = nullptr) const {
    fabric::Pushed const got = ring(ctx).push(ctx, request, limits);
    if (sequence != nullptr) *sequence = got.sequence;
    ++*pushed;
    return got.wait.end == WaitEnd::arrived;
  }

  bool send(Context& ctx, int to, std::uint32_t round, std::uint32_t& last) const {
    Message const m = Message::of(seed, round, rank, to, queue_pairs, order);
    for (int run = 0; run < m.runs; ++run)
      for (std::uint64_t i = 0; i < m.run[run].bytes / 8; ++i)
        words(map.goes(to, run))[i] = word_of(seed, round, rank, to, run, i);
    ctx.flush_stores();
    ctx.block_sync();
    for (int run = 0; run < m.runs; ++run) {
      bool const ends = run == m.runs - 1 || !m.one_signal;
      WorkRequest request{.id = {.operation = m.one_signal ? Operation::put : Operation::put_signal,
                                 .queue_pair = static_cast<std::uint8_t>(m.run[run].queue_pair),
                                 .peer = static_cast<std::uint16_t>(to),
                                 .epoch = round},
                          .local_offset = map.goes(to, run),
                          .remote_offset = map.came(rank, run),
                          .bytes = m.run[run].bytes,
                          .signal_offset = map.signal(rank, m.one_signal ? 0 : run),
                          .signal = exec::signal_word(round, static_cast<std::uint32_t>(m.runs))};
      if (!push(ctx, request, &last)) return false;
      request.id.operation = Operation::signal;
      if (ends && m.one_signal && !push(ctx, request, &last)) return false;
    }
    return true;
  }

  bool receive(Context& ctx, int from, std::uint32_t round) const {
    Message const m = Message::of(seed, round, from, rank, queue_pairs, order);
    for (int run = 0; run < m.runs; ++run) {
      if ((run == 0 || !m.one_signal) && !arrived(ctx, map.signal(from, run), round)) return false;
      for (std::uint64_t i = 0; i < m.run[run].bytes / 8; ++i)
        if (words(map.came(from, run))[i] != word_of(seed, round, from, rank, run, i)) return false;
    }
    return push(ctx, {.id = {.operation = Operation::signal,
                             .queue_pair = static_cast<std::uint8_t>(round % std::uint32_t(queue_pairs)),
                             .peer = static_cast<std::uint16_t>(from),
                             .epoch = round},
                      .signal_offset = map.ack(rank),
                      .signal = exec::signal_word(round, 0)});
  }
};

//! What a rank's kernels look at, and a proxy tells.
struct Notices {
  std::uint32_t failed = 0;
  std::vector<std::uint64_t> words;
  explicit Notices(int world) : words(2 * std::size_t(world), 0) {}
  [[nodiscard]] WaitLimits limits(std::chrono::nanoseconds timeout) {
    return {timeout.count(), &failed, words.data(), static_cast<std::int32_t>(words.size() / 2), -1};
  }
  [[nodiscard]] fabric::OnFault on_fault() {
    return [this](const Fault& fault) {
      std::atomic_ref<std::uint64_t>(words[fault.id.peer]).store(notice_of(fault.id), std::memory_order_release);
    };
  }
};

template <Order Promise>
void exchange(std::uint64_t seed) {
  INFO("MORI_EP_TEST_SEED=" << seed);
  Rng rng(seed);
  int const world = rng.in(2, 8), blocks = rng.in(1, 3), rings = rng.in(1, 2), capacity = rng.of({1, 4, 64});
  LoopbackOptions options{.queue_pairs = rng.in(1, 4), .depth = rng.of({1, 3, 128}), .seed = rng.next()};
  if (!rng.one_in(4)) {
    options.reorder = true;
    options.most_delay = microseconds(rng.of({0, 50}));
    options.most_late = microseconds(rng.of({0, 50}));
    options.early_one_in = rng.of({0, 2});
    options.duplicate_one_in = rng.of({0, 2});
    options.full_one_in = rng.of({0, 3});
  }
  auto const rounds = static_cast<std::uint32_t>(scaled(8, 4));
  std::uint32_t const first_round = 0u - rounds / 2;  // epochs wrap, too
  Map const map{world};
  LoopbackWorld<Promise> net(world, map.bytes(), options);
  for (int r = 0; r < world; ++r)
    for (std::uint64_t at = 0; at < map.came(0, 0); at += 8) net.word_at(r, at) = exec::signal_word(first_round - 1, 0);
  std::atomic<int> wrong{0};
  Complaints complaints;
  (void)comm::LocalWorld(world).run([&](comm::Communicator& comm) -> Status {
    int const r = comm.rank();
    std::vector<Ring> owned;
    std::vector<fabric::CommandRingRef> refs;
    std::vector<fabric::CommandReader> readers;
    for (int i = 0; i < rings; ++i) {
      owned.push_back(Ring::create(capacity, 0u - static_cast<std::uint32_t>(20 * i + r)).value());
      refs.push_back(owned.back().ref());
      readers.push_back(owned.back().reader());
    }
    Notices notices(world);
    std::atomic<std::uint64_t> pushed{0};
    fabric::Proxy proxy(net.end(r), std::move(readers), {.on_fault = notices.on_fault()});
    {
      Stream stream;
      stream.launch({.blocks = blocks},
                    Exchange{map, r, options.queue_pairs, seed, first_round, rounds, Promise, net.arena(r), refs.data(),
                             rings, notices.limits(std::chrono::seconds(60)), &wrong, &pushed});
      stream.synchronize();
    }
    Status const stopped = proxy.stop();
    complaints.expect(stopped.ok(), stopped.message());
    auto const& c = proxy.counters();
    complaints.expect(c.commands.load() == pushed.load(), "commands");
    complaints.expect(c.requests.load() == pushed.load(), "requests");
    complaints.expect(c.ended.load() == pushed.load(), "ended");
    complaints.expect(c.posts.load() <= c.requests.load() && c.dropped.load() == 0, "posts");
    // What completed early is still on its way, and only its sender's calls move it.
    auto const end = Clock::now() + milliseconds(1);
    for (int n = 0; options.early_one_in != 0 && (n < 2000 || Clock::now() < end); ++n) (void)net.end(r).poll({});
    return {};
  });
  REQUIRE(complaints.text() == "");
  REQUIRE(wrong.load() == 0);
  // Plain loops over what must lie there after the last round: each run's last bytes, up to its length then.
  for (int at = 0; at < world; ++at)
    for (int from = 0; from < world; ++from)
      for (int run = 0; run < kRuns; ++run) {
        bool written[kRun / 8] = {};
        for (std::uint32_t back = 1; back <= rounds; ++back) {
          std::uint32_t const round = first_round + rounds - back;
          Message const m = Message::of(seed, round, from, at, options.queue_pairs, Promise);
          for (std::uint64_t i = 0; run < m.runs && i < m.run[run].bytes / 8; ++i) {
            if (!written[i] && net.word(at, map.came(from, run) + 8 * i) != word_of(seed, round, from, at, run, i))
              wrong += 1;
            written[i] = true;
          }
        }
        for (std::uint64_t i = 0; i < kRun / 8; ++i)
          if (!written[i] && net.word(at, map.came(from, run) + 8 * i) != 0) wrong += 1;
      }
  REQUIRE(wrong.load() == 0);
}

}  // namespace

TEST_CASE("kernels exchange rounds of runs over random networks") {
  std::uint64_t const first = env_number("MORI_EP_TEST_SEED", 1);
  for (std::uint64_t seed = first; seed < first + std::uint64_t(scaled(12, 5)); ++seed) {
    exchange<Order::none>(seed);
    exchange<Order::in_queue_pair>(seed);
  }
}

TEST_CASE("a kernel that waits hears of a peer that vanished, and the others go on") {
  constexpr int kWorld = 3, kGone = 2;
  LoopbackWorld<Order::in_queue_pair> net(
      kWorld, 4096, {.queue_pairs = 2, .vanishing_rank = kGone, .vanish_timeout = milliseconds(30)});
  auto ring = Ring::create(64).value();
  Notices notices(kWorld);
  std::atomic<int> told{0};
  fabric::Proxy proxy(net.end(0), {ring.reader()}, {.on_fault = [&, tell = notices.on_fault()](const Fault& fault) {
                        ++told;
                        tell(fault);
                      }});
  exec::WaitResult waited;
  std::uint64_t answer = 0;
  std::uint64_t late_ends = 0;
  auto const begin = Clock::now();
  {
    Stream stream;
    stream.launch({}, [&, ref = ring.ref(), limits = notices.limits(std::chrono::seconds(60))](Context& ctx) {
      auto const push = [&](int peer, Operation operation, int queue_pair) {
        return ref.push(ctx,
                        {.id = {.operation = operation,
                                .queue_pair = static_cast<std::uint8_t>(queue_pair),
                                .peer = static_cast<std::uint16_t>(peer),
                                .epoch = 41},
                         .local_offset = 1024,
                         .remote_offset = 1024,
                         .bytes = 64,
                         .signal_offset = 8,
                         .signal = exec::signal_word(41, 0)},
                        limits);
      };
      (void)push(kGone, Operation::put_signal, 0);
      (void)push(kGone, Operation::put, 1);
      waited = ctx.wait(&answer, 41, limits);
      // Both queue pairs: what was in flight, and what is dropped now.
      WaitLimits quiet = limits;
      quiet.world = 0;
      for (int i = 0; i < 5; ++i) (void)push(kGone, Operation::put, i % 2);
      late_ends +=
          ref.await_end(ctx, push(1, Operation::put_signal, 0).sequence, quiet).end == WaitEnd::arrived ? 1 : 0;
    });
    stream.synchronize();
  }
  auto const took = Clock::now() - begin;
  REQUIRE(waited.end == WaitEnd::peer_fault);
  REQUIRE(waited.fault_rank == kGone);
  REQUIRE(took >= milliseconds(30));
  REQUIRE(took < std::chrono::seconds(10));
  REQUIRE(notices.words[kGone] == notice_of({.operation = Operation::put_signal, .peer = kGone, .epoch = 41}));
  REQUIRE(late_ends == 1);
  REQUIRE(net.word(1, 8) == exec::signal_word(41, 0));
  REQUIRE(net.word(kGone, 8) == 0);
  REQUIRE(told.load() == 1);
  Status const status = proxy.status(kGone);
  REQUIRE(status.code() == Errc::fabric_error);
  REQUIRE(status.message().find("\"put_signal of epoch 41, queue pair 0\", peer rank 2") != std::string::npos);
  REQUIRE(proxy.status(1).ok());
  REQUIRE(proxy.stop().ok());
  REQUIRE(proxy.counters().dropped.load() + proxy.counters().ended.load() == 8);
  REQUIRE(proxy.counters().dropped.load() >= 4);
}

TEST_CASE("a proxy stops when all has ended, or says who it waits for") {
  for (bool const in_time : {true, false}) {
    LoopbackWorld<Order::none> net(3, 4096, {.latency = in_time ? milliseconds(20) : std::chrono::minutes(10)});
    auto ring = Ring::create(8).value();
    fabric::Proxy proxy(net.end(0), {ring.reader()},
                        {.stop_timeout = in_time ? std::chrono::seconds(60) : milliseconds(50)});
    exec::host::BlockState state;
    Context context(state, 0, 1, 0, 1, false);
    for (int i = 0; i < 3; ++i)
      (void)ring.ref().push(
          context, {.id = {.operation = Operation::signal, .peer = 2, .epoch = 3}, .signal = exec::signal_word(3, 0)},
          {.timeout_ns = 1'000'000'000});
    auto const begin = Clock::now();
    Status const stopped = proxy.stop();
    REQUIRE(Clock::now() - begin < std::chrono::seconds(20));
    REQUIRE(stopped.ok() == in_time);
    REQUIRE(proxy.stop().ok() == in_time);
    REQUIRE((net.word(2, 0) != 0) == in_time);
    if (in_time) continue;
    Complaints complaints;
    complaints.refused(stopped, Errc::fabric_error, "commands that have not ended", 3, 0);
    REQUIRE(complaints.text() == "");
    REQUIRE(stopped.error().peer == 2);
  }
}

TEST_CASE("an idle proxy leaves the cores to others, and still hears the next command") {
  constexpr int kProxies = 6;
  LoopbackWorld<Order::none> net(kProxies, 4096, {});
  std::vector<Ring> rings;
  std::vector<std::unique_ptr<fabric::Proxy<fabric::Loopback<Order::none>>>> proxies;
  for (int r = 0; r < kProxies; ++r) {
    rings.push_back(Ring::create(8).value());
    proxies.push_back(
        std::make_unique<fabric::Proxy<fabric::Loopback<Order::none>>>(net.end(r), std::vector{rings.back().reader()}));
  }
  std::this_thread::sleep_for(milliseconds(50));
  auto const cpu_begin = std::clock();
  auto const begin = Clock::now();
  std::this_thread::sleep_for(milliseconds(300));
  double const cpu = double(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  double const wall = std::chrono::duration<double>(Clock::now() - begin).count();
  REQUIRE(cpu < 0.75 * wall);  // of one core, for all of them together; each that spins would take more
  exec::host::BlockState state;
  Context context(state, 0, 1, 0, 1, false);
  for (int r = 0; r < kProxies; ++r)
    (void)rings[std::size_t(r)].ref().push(
        context,
        {.id = {.operation = Operation::signal, .peer = static_cast<std::uint16_t>(r), .epoch = 9},
         .signal = exec::signal_word(9, 0)},
        {.timeout_ns = 1'000'000'000});
  for (int r = 0; r < kProxies; ++r) {
    std::uint64_t unused[2] = {};
    std::uint32_t failed = 0;
    REQUIRE(context.wait(&net.word_at(r, 0), 9, {std::int64_t{60'000'000'000}, &failed, unused, 1, -1}).end ==
            WaitEnd::arrived);
    REQUIRE(proxies[std::size_t(r)]->stop().ok());
  }
}

}  // namespace mori_ep::test
