// SPDX-License-Identifier: MIT
// Going on without ranks: after they have left, were killed, or stopped, at any step of dispatch and combine (E16).
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/expect.hpp"
#include "support/hooked_host.hpp"
#include "support/machine.hpp"
#include "support/process_world.hpp"
#include "support/random.hpp"

namespace mori_ep::test {

namespace {

constexpr int kTokens = 5, kHidden = 16, kTopk = 3, kExpertsPerRank = 2;
#if defined(MORI_EP_GPU)
constexpr std::chrono::milliseconds kDeadline(8000);  // processes take turns on a device
#else
constexpr std::chrono::milliseconds kDeadline(400);
#endif

EpDispatchCombineConfig config() {
  return {.hidden_dim = kHidden,
          .max_num_inp_token_per_rank = kTokens,
          .num_experts_per_rank = kExpertsPerRank,
          .num_experts_per_token = kTopk,
          .block_num = 1,
          .warp_num_per_block = 1,
          .timeout_ms = kDeadline.count()};
}

template <class Exec>
using Ep = EpDispatchCombine<transport::Xgmi, schedule::IntraNode, quant::None<float>, Exec, reduce::Sum, std::int32_t>;

//! A rank's buffers and its rounds: every element of every row is known by plain loops.
template <class Exec>
struct Rounds {
  int rank, world;
  Stream& stream;  // of the machine, hooked or not
  Vector<float> x = Vector<float>(kTokens * kHidden), y = Vector<float>(kTokens * kHidden);
  Vector<std::int32_t> ids = Vector<std::int32_t>(kTokens * kTopk);
  Vector<std::int32_t> count = Vector<std::int32_t>(1);
  Vector<float> rows = Vector<float>(static_cast<std::size_t>(world) * kTokens * kHidden);
  std::string wrong = {};

  static float value(int rank, int round, int token, int i) {
    return static_cast<float>(100 * rank + 10 * token + i % 7 + round % 5);
  }
  static std::int32_t id(int world, int rank, int round, int token, int k) {
    auto const h = mix(static_cast<std::uint64_t>(rank), static_cast<std::uint64_t>(round),
                       static_cast<std::uint64_t>(token), static_cast<std::uint64_t>(k));
    return static_cast<std::int32_t>(h % static_cast<std::uint64_t>(world * kExpertsPerRank));
  }

  //! Dispatch, an expert that doubles its rows, combine; waits. Not in place where the dispatch may fail: peers may still
  //! read what was combined last, and nothing but their next dispatch says that they have.
  Status play(Ep<Exec>& op, int round, bool in_place = true) {
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < kHidden; ++i) x[static_cast<std::size_t>(t * kHidden + i)] = value(rank, round, t, i);
      for (int k = 0; k < kTopk; ++k) ids[static_cast<std::size_t>(t * kTopk + k)] = id(world, rank, round, t, k);
    }
    auto got = op.dispatch({.input = {x.data(), kTokens, kHidden}, .indices = {ids.data(), kTokens, kTopk}}, stream);
    if (!got.ok()) return got.status();
    auto const out = op.get_registered_combine_input_buffer(got->ticket);
    // The operator's memory is the device's: the host works on copies.
    std::size_t const bytes = rows.size() * sizeof(float);
    stream.copy(count.data(), got->recv_count, sizeof(std::int32_t));
    stream.copy(rows.data(), got->rows.data, bytes);
    stream.submit([this] {
      for (std::size_t i = 0; i < static_cast<std::size_t>(count[0]) * kHidden; ++i) rows[i] *= 2;
    });
    typename Ep<Exec>::CombineInputs in{.output = {y.data(), kTokens, kHidden}};
    if (in_place)
      stream.copy(out.data, rows.data(), bytes);
    else
      in.input = {rows.data(), static_cast<std::int64_t>(world) * kTokens, kHidden};
    Status const s = op.combine(std::move(got->ticket), in, stream);
    stream.synchronize();
    return s.ok() ? op.status() : s;
  }
  //! Is y what members alone make of it?
  void check(int round, const std::vector<int>& members) {
    for (int t = 0; t < kTokens; ++t) {
      std::vector<int> ranks;
      for (int k = 0; k < kTopk; ++k) {
        int const to = id(world, rank, round, t, k) / kExpertsPerRank;
        if (std::find(members.begin(), members.end(), to) != members.end() &&
            std::find(ranks.begin(), ranks.end(), to) == ranks.end())
          ranks.push_back(to);
      }
      for (int i = 0; i < kHidden; ++i) {
        float const want = static_cast<float>(ranks.size()) * 2 * value(rank, round, t, i);
        float const got = y[static_cast<std::size_t>(t * kHidden + i)];
        if (got != want && wrong.empty())
          wrong = "rank " + std::to_string(rank) + " round " + std::to_string(round) + " token " + std::to_string(t) +
                  ": " + std::to_string(got) + ", expected " + std::to_string(want);
      }
    }
  }
};

std::vector<int> without(std::vector<int> members, int rank) {
  members.erase(std::remove(members.begin(), members.end(), rank), members.end());
  return members;
}

}  // namespace

TEST_CASE("ranks that have left one after the other: the rest goes on, exactly") {
  Complaints wrong;
  constexpr int kWorld = 5;
  Status const s = comm::LocalWorld(kWorld).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Ep<Machine>::create(comm, config());
    if (!op.ok()) return op.status();
    Rounds<Machine> rounds{comm.rank(), kWorld, stream};
    std::vector<int> members = comm::all_ranks(kWorld);
    int round = 0;
    for (int leaver : {2, 0, 4}) {
      for (int i = 0; i < 2; ++i, ++round) {
        if (Status p = rounds.play(*op, round); !p.ok()) return p;
        rounds.check(round, members);
      }
      if (comm.rank() == leaver) return {};
      Status const fault = rounds.play(*op, round++, false);
      if (fault.code() == Errc::timeout || fault.code() == Errc::peer_fault)
        wrong.expect(fault.error().peer == leaver, "blames another: " + fault.message());
      else
        wrong.add("no fault: " + fault.message());
      members = without(members, leaver);
      if (Status r = op->recover(members, stream); !r.ok()) return r;
      auto const left = op->members();
      wrong.expect(std::equal(left.begin(), left.end(), members.begin(), members.end()), "members()");
    }
    for (int i = 0; i < 3; ++i, ++round) {
      if (Status p = rounds.play(*op, round); !p.ok()) return p;
      rounds.check(round, members);
    }
    wrong.expect(rounds.wrong.empty(), rounds.wrong);
    return {};
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("ids of ranks that were left out count as invalid") {
  Complaints wrong;
  Status const s = comm::LocalWorld(3).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Ep<Machine>::create(comm, config());
    if (!op.ok()) return op.status();
    if (comm.rank() == 1) return {};
    if (Status r = op->recover(std::array{0, 2}, stream); !r.ok()) return r;
    Vector<float> const x(2 * kHidden, 1.0f);
    Vector<std::int32_t> const ids{0, 2, 4, 3, 3, -1};  // of rank 0, 1, 2; 1, 1, none
    auto got = op->dispatch({.input = {x.data(), 2, kHidden}, .indices = {ids.data(), 2, kTopk}}, stream);
    if (!got.ok()) return got.status();
    auto const totals = op->recv_totals(got->ticket, stream);
    wrong.expect(totals.ok() && totals->total == 2 && totals->invalid_ids == 3,
                 "received " + std::to_string(totals->total) + ", invalid " + std::to_string(totals->invalid_ids));
    return totals.status();
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("members that cannot go on are refused by name, and nothing changes") {
  Complaints wrong;
  std::atomic<bool> alone{true};
  Status const s = comm::LocalWorld(3, 0, std::chrono::seconds(2)).run([&](comm::Communicator& comm) -> Status {
    Stream stream;
    auto op = Ep<Machine>::create(comm, config());
    if (!op.ok()) return op.status();
    int const me = comm.rank();
    auto const refused = [&](std::vector<int> members, Errc code, const std::string& part) {
      Status const r = op->recover(members, stream);
      wrong.expect(r.code() == code && r.message().find(part) != std::string::npos, part + ": " + r.message());
    };
    Vector<float> const none(kHidden);
    Vector<std::int32_t> const no_ids(kTopk, -1);
    Vector<float> y(kHidden, 1.0f);
    auto got = op->dispatch({.input = {none.data(), 1, kHidden}, .indices = {no_ids.data(), 1, kTopk}}, stream);
    if (!got.ok()) return got.status();
    refused({}, Errc::invalid_argument, "member of a group is " + std::to_string(me));
    refused({(me + 1) % 3}, Errc::invalid_argument, "Only members");
    refused({0, 1, 2, 3}, Errc::invalid_argument, "member of a group is 3, limit 2");
    refused({2, 1, 0}, Errc::invalid_argument, "ascending");
    Status const kept = op->combine(std::move(got->ticket), {.output = {y.data(), 1, kHidden}}, stream);
    stream.synchronize();
    wrong.expect(kept.ok() && y[0] == 0, "a ticket in flight: " + kept.message());
    if (me == 2) refused({0, 2}, Errc::missing_rank, "peer rank 0");  // alone with that opinion
    if (me == 2) alone = false;
    while (alone) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Rounds<Machine> rounds{me, 3, stream};
    if (Status b = comm.barrier(); !b.ok()) return b;
    if (Status p = rounds.play(*op, 0); !p.ok()) return p;
    rounds.check(0, {0, 1, 2});
    if (Status b = comm.barrier(); !b.ok()) return b;
    if (me == 0) return {};
    if (Status r = op->recover(std::array{1, 2}, stream); !r.ok()) return r;
    refused({0, 1, 2}, Errc::invalid_argument, "left out before");
    if (Status p = rounds.play(*op, 1); !p.ok()) return p;
    rounds.check(1, {1, 2});
    wrong.expect(rounds.wrong.empty(), rounds.wrong);
    return {};
  });
  REQUIRE(s.message() == "ok");
  REQUIRE(wrong.text() == "");
}

TEST_CASE("a process that is killed while rounds go on: the rest names it and goes on", "[processes]") {
#if defined(MORI_EP_GPU)
  if (!ranks_are_processes()) {
    std::printf("SKIPPED: ranks as processes; MORI_EP_TEST_PROCESSES=1 and the tag [processes] run them\n");
    return;
  }
#endif
  constexpr int kWorld = 4, kVictim = 1;
  struct Life {
    std::int32_t rounds = 0, recovered = 0;
    char wrong[240] = "";
  };
  for (int delay_ms : {0, 3, 20, 90}) {
    SharedArray<Life> lives(kWorld);
    ProcessWorld processes(kWorld);
    processes.start([&](comm::Communicator& comm) -> Status {
      begin_process();
      settle<Machine>(comm.rank(), kWorld);
      Life& life = lives[static_cast<std::size_t>(comm.rank())];
      auto const complain = [&](const std::string& text) {
        if (*life.wrong == '\0') std::strncpy(life.wrong, text.c_str(), sizeof(life.wrong) - 1);
      };
      Stream stream;
      auto op = Ep<Machine>::create(comm, config());
      if (!op.ok()) return op.status();
      Rounds<Machine> rounds{comm.rank(), kWorld, stream};
      std::vector<int> const all = comm::all_ranks(kWorld);
      Status fault;
      for (int round = 0; fault.ok(); ++round) {
        auto const begin = std::chrono::steady_clock::now();
        fault = rounds.play(*op, round);
        if (std::chrono::steady_clock::now() - begin > kDeadline + std::chrono::seconds(1))
          complain("waited longer than the deadline and a second");
        if (fault.ok()) rounds.check(round, all);
        std::atomic_ref(life.rounds).store(round + 1);
      }
      if ((fault.code() != Errc::timeout && fault.code() != Errc::peer_fault) || fault.error().peer != kVictim)
        complain("does not name the victim: " + fault.message());
      std::vector<int> const rest = without(all, kVictim);
      if (Status s = op->recover(rest, stream); !s.ok()) return s;
      for (int round = 0; round < 3; ++round) {
        if (Status s = rounds.play(*op, round); !s.ok()) return s;
        rounds.check(round, rest);
      }
      complain(rounds.wrong);
      life.recovered = 1;
      return {};
    });
    auto const all_play = [&] {
      for (int r = 0; r < kWorld; ++r)
        if (std::atomic_ref(lives[static_cast<std::size_t>(r)].rounds).load() < 2) return false;
      return true;
    };
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!all_play() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(all_play());
    std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
    ::kill(processes.pid(kVictim), SIGKILL);
    for (int rank = 0; rank < kWorld; ++rank) {
      auto const& outcome = processes.wait(rank);
      if (rank == kVictim) continue;
      const Life& life = lives[static_cast<std::size_t>(rank)];
      INFO("rank " << rank << ": " << outcome.error.message());
      CHECK(outcome.status == 0);
      CHECK(std::string(outcome.thrown) == "");
      CHECK(std::string(life.wrong) == "");
      CHECK(life.recovered == 1);
    }
  }
}

#if !defined(MORI_EP_GPU)

namespace {

using Action = StepHook::Action;

//! What the ranks' processes tell the test.
struct Report {
  std::int64_t steps = 0;  //!< of one round
  int recovered = 0;       //!< a survivor's rounds after the fault, exact
  char wrong[240] = "";
};

//! One round in which `victim` meets `action` before its step `at`; then the survivors go on. The victim, if it lives,
//! goes on with them when `rejoins`.
void interfere(int world, int victim, Action action, std::int64_t at, SharedArray<Report>& reports,
               SharedArray<int>& resumed) {
  ProcessWorld processes(world);
  bool const rejoins = action == Action::sleep;
  processes.start([&](comm::Communicator& comm) -> Status {
    Report& report = reports[static_cast<std::size_t>(comm.rank())];
    auto const complain = [&](const std::string& text) {
      if (*report.wrong == '\0') std::strncpy(report.wrong, text.c_str(), sizeof(report.wrong) - 1);
    };
    Stream stream;
    auto op = Ep<HookedHost>::create(comm, config());
    if (!op.ok()) return op.status();
    Rounds<HookedHost> rounds{comm.rank(), world, stream};
    std::vector<int> members = comm::all_ranks(world);
    if (Status s = rounds.play(*op, 0); !s.ok()) return s;
    rounds.check(0, members);
    if (Status s = comm.barrier(); !s.ok()) return s;
    std::int64_t const before = StepHook::steps.load();
    if (comm.rank() == victim) {
      StepHook::action = action;
      StepHook::at = at < 0 ? -1 : before + at;
      StepHook::nap = kDeadline + kDeadline / 2;
    }
    // The victim's last step may have been enough for this round.
    Status fault;
    int round = 1;
    for (; round < 3 && fault.ok(); ++round) {
      auto const begin = std::chrono::steady_clock::now();
      fault = rounds.play(*op, round);
      if (round == 1) report.steps = StepHook::steps.load() - before;
      if (fault.ok()) rounds.check(round, members);
      if (std::chrono::steady_clock::now() - begin > kDeadline + std::chrono::seconds(1) && comm.rank() != victim)
        complain("waited longer than the deadline and a second");
    }
    if (action == Action::none) return rounds.wrong.empty() ? Status{} : Status{Error{.code = Errc::invalid_argument}};
    if (comm.rank() == victim && !rejoins) return {};  // it was stopped, and goes its own way
    if (fault.ok() && !rejoins) complain("no fault");
    if (!fault.ok() && comm.rank() != victim &&
        ((fault.code() != Errc::timeout && fault.code() != Errc::peer_fault) || fault.error().peer != victim ||
         fault.error().phase == Phase::none))
      complain("does not name the victim: " + fault.message());
    if (!fault.ok()) {  // failed: calls return at once
      auto const begin = std::chrono::steady_clock::now();
      if (rounds.play(*op, round).ok()) complain("a call after the fault succeeded");
      if (std::chrono::steady_clock::now() - begin > kDeadline / 2) complain("a call after the fault waited");
    }
    if (!rejoins) members = without(members, victim);
    if (Status s = op->recover(members, stream); !s.ok()) return s;
    for (int i = 0; i < 3; ++i) {
      if (Status s = rounds.play(*op, 10 + i); !s.ok()) return s;
      rounds.check(10 + i, members);
    }
    report.recovered = 3;
    // A victim that was stopped runs again now, and may write where it could before.
    while (action == Action::halt && std::atomic_ref(resumed[0]).load() == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (int i = 3; i < 6; ++i) {
      if (Status s = rounds.play(*op, 10 + i); !s.ok()) return s;
      rounds.check(10 + i, members);
    }
    report.recovered = 6;
    complain(rounds.wrong);
    return {};
  });
  auto const survived = [&](int rank) {
    auto const& outcome = processes.wait(rank);
    Report const& report = reports[static_cast<std::size_t>(rank)];
    INFO("rank " << rank << ": " << outcome.error.message());
    CHECK(outcome.status == 0);
    CHECK(std::string(outcome.thrown) == "");
    CHECK(Status(outcome.error).ok());
    CHECK(std::string(report.wrong) == "");
    if (action != Action::none && (rank != victim || rejoins)) CHECK(report.recovered == 6);
  };
  if (action == Action::halt) {
    // When all survivors have gone on, the victim may wake.
    auto const all_gone_on = [&] {
      for (int r = 0; r < world; ++r)
        if (r != victim && std::atomic_ref(reports[static_cast<std::size_t>(r)].recovered).load() < 3) return false;
      return true;
    };
    auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!all_gone_on() && std::chrono::steady_clock::now() < until)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(processes.pid(victim), SIGCONT);
    std::atomic_ref(resumed[0]).store(1);
  }
  for (int rank = 0; rank < world; ++rank)
    if (rank != victim || rejoins || action == Action::none) survived(rank);
  auto const& end = processes.wait(victim);
  if (action == Action::die) CHECK((WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGKILL));
}

}  // namespace

TEST_CASE("a rank that is killed, stopped or slow at any step: the survivors name it and go on") {
  auto const seed = env_number("MORI_EP_TEST_SEED", 20260701);
  Rng random(seed);
  for (int world : {2, 4, 8}) {
    std::int64_t steps = 0;
    {
      SharedArray<Report> reports(static_cast<std::size_t>(world));
      SharedArray<int> resumed(1);
      interfere(world, 0, Action::none, -1, reports, resumed);
      steps = reports[0].steps;
      REQUIRE(steps > 2 * world);
    }
    for (auto [action, cases] : {std::pair{Action::die, 6}, {Action::halt, 3}, {Action::sleep, 2}})
      for (int i = 0; i < cases; ++i) {
        int const victim = random.in(0, world - 1);
        std::int64_t const at = i == 0 ? 0 : i == 1 ? steps - 1 : random.in(1, static_cast<int>(steps) - 2);
        SharedArray<Report> reports(static_cast<std::size_t>(world));
        SharedArray<int> resumed(1);
        INFO("MORI_EP_TEST_SEED=" << seed << " world " << world << " victim " << victim << " action "
                                  << static_cast<int>(action) << " step " << at << " of " << steps);
        interfere(world, victim, action, at, reports, resumed);
      }
  }
}

TEST_CASE("a rank that is stopped in recover(): nobody waits twice for it, and all come back together") {
  constexpr int kWorld = 3, kSleeper = 2;
  struct Life {
    std::int32_t in_recover = 0, exact = 0, attempts = 0;
    std::int64_t longest_ms = 0;
    char wrong[240] = "";
  };
  std::chrono::milliseconds const meeting(600);
  for (bool const fewer : {false, true}) {
    SharedArray<Life> lives(kWorld + 1);
    ProcessWorld processes(kWorld + (fewer ? 1 : 0), 0, meeting);
    processes.start([&](comm::Communicator& comm) -> Status {
      Life& life = lives[static_cast<std::size_t>(comm.rank())];
      Stream stream;
      auto op = Ep<Machine>::create(comm, config());
      if (!op.ok()) return op.status();
      std::vector<int> const members = comm::all_ranks(kWorld);
      if (comm.rank() == kWorld) return {};  // left out
      Rounds<Machine> rounds{comm.rank(), comm.world(), stream};
      if (comm.rank() != kSleeper) std::this_thread::sleep_for(meeting / 2);
      std::atomic_ref(life.in_recover).store(1);
      // Every rank goes on until two rounds in a row have been exact.
      for (auto const until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
           life.exact < 2 && std::chrono::steady_clock::now() < until; ++life.attempts) {
        auto const begin = std::chrono::steady_clock::now();
        Status const s = op->recover(members, stream);
        auto const took =
            std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
        if (comm.rank() != kSleeper && took.count() > life.longest_ms) life.longest_ms = took.count();
        if (!s.ok()) continue;
        life.exact = 0;
        for (int round = 0; round < 2 && rounds.play(*op, round).ok(); ++round) {
          rounds.check(round, members);
          ++life.exact;
        }
      }
      std::strncpy(life.wrong, rounds.wrong.c_str(), sizeof(life.wrong) - 1);
      return {};
    });
    while (std::atomic_ref(lives[kSleeper].in_recover).load() == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(meeting / 5);
    ::kill(processes.pid(kSleeper), SIGSTOP);
    std::this_thread::sleep_for(2 * meeting);
    ::kill(processes.pid(kSleeper), SIGCONT);
    for (int rank = 0; rank < kWorld; ++rank) {
      CHECK(processes.wait(rank).status == 0);
      const Life& life = lives[static_cast<std::size_t>(rank)];
      INFO("rank " << rank << (fewer ? ", fewer" : "") << ": " << life.attempts << " attempts");
      CHECK(life.exact == 2);
      CHECK(std::string(life.wrong) == "");
      CHECK(life.longest_ms < meeting.count() + 1000);
    }
  }
}

#endif

}  // namespace mori_ep::test
