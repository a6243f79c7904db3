// SPDX-License-Identifier: MIT
#include "process_ranks.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "children.hpp"
#include "no_memory.hpp"

namespace ep_bench {

using mori_ep::Communicator;
using mori_ep::Errc;
using mori_ep::Result;
using mori_ep::Status;
using mori_ep::comm::Arena;
using mori_ep::comm::Bootstrap;
using mori_ep::comm::SymmetricHeap;
using mori_ep::exec::Host;

namespace {

//! What the processes must have been given alike, so that they make the same calls.
std::vector<std::pair<const char*, std::string>> measured_options(const Options& o) {
  auto const list = [](const auto& values) {
    std::string text;
    for (auto const& value : values)
      if constexpr (std::is_arithmetic_v<std::decay_t<decltype(value)>>)
        text += std::to_string(value) + ',';
      else
        text += value + ',';
    return text;
  };
  return {
      {"--tokens", list(o.tokens)},
      {"--hidden", list(o.hidden)},
      {"--topk", list(o.topk)},
      {"--dtype", list(o.dtypes)},
      {"--routing", o.routing},
      {"--quant", o.quant},
      {"--schedule", o.schedule},
      {"--external", std::to_string(o.external)},
      {"--experts", std::to_string(o.experts)},
      {"--blocks", std::to_string(o.blocks)},
      {"--warps", std::to_string(o.warps)},
      {"--iterations", std::to_string(o.iterations)},
      {"--warmup", std::to_string(o.warmup)},
      {"--seed", std::to_string(o.seed)},
  };
}

void require_same_options(const Communicator& comm, const Options& options) {
  std::vector<std::size_t> mine;
  auto const named = measured_options(options);
  for (auto const& [name, value] : named) mine.push_back(std::hash<std::string>()(value));
  std::vector<std::size_t> all(mine.size() * static_cast<std::size_t>(comm.world()));
  comm.all_gather(mine.data(), all.data(), mine.size() * sizeof(mine[0])).or_throw();
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i] != all[i % mine.size()])
      throw UsageError(std::string(named[i % mine.size()].first) + " is not on rank " +
                       std::to_string(i / mine.size()) + " what it is on rank 0: give every process the same options.");
}

void require_one_host(const Communicator& comm) {
  for (int rank = 0; rank < comm.world(); ++rank)
    if (!comm.on_host(rank))
      throw UsageError("rank " + std::to_string(rank) + " is on another host than rank " + std::to_string(comm.rank()) +
                       ": all must be on one, since they share memory and a clock.");
}

//! Errors that a user mends on the command line, or in the environment.
[[noreturn]] void fail(const Status& status) {
  switch (status.code()) {
    case Errc::invalid_argument:
    case Errc::invalid_environment:
    case Errc::config_mismatch:
      throw UsageError(status.message());
    default:
      throw std::runtime_error(status.message());
  }
}

template <class T>
T required(Result<T> result) {
  if (!result.ok()) fail(result.status());
  return std::move(*result);
}

}  // namespace

ProcessRank::ProcessRank(Communicator comm, const Options& options, std::size_t problems, PeerWatch::Leave leave)
    : comm_(std::move(comm)), bound_(options.ranks_are == RanksAre::mpi) {
  require_one_host(comm_);
  require_same_options(comm_, options);
  Lifelines lifelines = required(Lifelines::join(comm_));
  static_assert(alignof(Pulse) % alignof(MeetingBoard) == 0);
  auto const pulses = static_cast<std::size_t>(comm_.world()), boards = problems + 1;
  std::size_t const pulse_bytes = pulses * sizeof(Pulse);
  auto arena = std::make_shared<Arena<Host>>(first() ? pulse_bytes + boards * sizeof(MeetingBoard) : sizeof(Pulse),
                                             mori_ep::comm::Place::board, true);
  if (arena->data() == nullptr) throw NoMemory("memory in which the ranks meet", arena->bytes());
  if (first()) {
    for (std::size_t i = 0; i < pulses; ++i) new (arena->data() + i * sizeof(Pulse)) Pulse;
    for (std::size_t i = 0; i < boards; ++i) new (arena->data() + pulse_bytes + i * sizeof(MeetingBoard)) MeetingBoard;
  }
  heap_ = required(SymmetricHeap<Host>::join(comm_, mori_ep::comm::all_ranks(comm_.world()), std::move(arena)));
  std::byte* const base = heap_.base_of(0);
  boards_ = {std::launder(reinterpret_cast<MeetingBoard*>(base + pulse_bytes)), boards};
  together_ = std::make_unique<Meeting>(meeting_at(0));
  watch_ = std::make_unique<PeerWatch>(rank(), std::span(std::launder(reinterpret_cast<Pulse*>(base)), pulses), boards_,
                                       std::move(lifelines), options.environment.bootstrap_timeout, std::move(leave));
}

void ProcessRank::meet() {
  if (!together_->wait()) throw EndedByPeer(together_->complaint());
}

void ProcessRank::alone(const std::function<void()>& work) {
  meet();
  if (first()) bound_ ? on_every_core(work) : work();
  meet();
}

Outcome ProcessRank::measure(const Problem& problem, const Progress& progress) {
  // A board of its own: when this problem fails, the next can still be measured.
  Outcome out = run_rank(problem, comm_, meeting_at(++measured_), progress);
  meet();
  return out;
}

Ending run_as_rank(int rank, const Options& options, std::size_t problems, const Join& join, const Campaign& campaign,
                   bool speak_up) {
  auto const complain = [&](std::string_view what) {
    constexpr std::string_view kLibrary = "mori_ep: ";
    std::string const mine = "rank " + std::to_string(rank) + ": ";
    if (what.starts_with(kLibrary)) what.remove_prefix(kLibrary.size());
    if (what.starts_with(mine)) what.remove_prefix(mine.size());
    std::fprintf(stderr, "ep_bench: %s%.*s\n", mine.c_str(), static_cast<int>(what.size()), what.data());
  };
  auto const complain_of_peer = [&](const Complaint& of) {
    bool const told_to = of.witness < 0 ? rank == 0 : rank == of.witness;
    if (speak_up || told_to) complain(of.text);
  };
  auto const leave = [&](const Complaint& of) {
    complain_of_peer(of);
    std::fflush(nullptr);
    std::_Exit(of.exit_code);
  };
  std::unique_ptr<ProcessRank> self;
  auto const give_up = [&](const std::string& what, int exit_code) -> Ending {
    complain(what);
    if (self) self->give_up(what, exit_code);
    return {.exit_code = exit_code};
  };
  try {
    int const gpu_per_node = options.nodes > 1 ? (options.world + options.nodes - 1) / options.nodes : 0;
    self = std::make_unique<ProcessRank>(
        required(Communicator::create(required(join()), options.environment, gpu_per_node)), options, problems, leave);
    int const exit_code = campaign(*self);
    return {.exit_code = exit_code, .together = true};
  } catch (const EndedByPeer& peer) {
    complain_of_peer(peer.complaint);
    return {.exit_code = peer.complaint.exit_code};
  } catch (const UsageError& error) {
    return give_up(error.what(), 2);
  } catch (const std::exception& error) {
    return give_up(text_of(error), 1);
  }
}

int run_spawned(const Options& options, std::size_t problems, const Campaign& campaign) {
  mori_ep::TcpOptions tcp(options.environment);
  if (!tcp.interfaces.is_set()) (void)tcp.interfaces.list.assign("=lo");  // no rank is elsewhere
  auto root = mori_ep::get_unique_id(tcp);
  if (!root.ok()) fail(root.status());
  mori_ep::UniqueId const id = root->id();
  // Rank 0 alone listens: else who looks for it would wait where nobody answers.
  auto const stop_listening = [&] { root = mori_ep::Error{.code = Errc::invalid_argument}; };
  auto const rank_main = [&](int rank) {
    auto const join = [&]() -> Result<std::shared_ptr<Bootstrap>> {
      if (rank == 0) return mori_ep::join_tcp(std::move(*root), options.world, tcp);
      stop_listening();
      return mori_ep::join_tcp(id, rank, options.world, tcp);
    };
    return run_as_rank(rank, options, problems, join, campaign, false).exit_code;
  };
  return run_children(options.world, rank_main, stop_listening);
}

int run_joined(const Options& options, std::size_t problems, const Campaign& campaign) {
  mori_ep::TcpOptions tcp(options.environment);
  tcp.job = options.job;
  auto const join = [&]() -> Result<std::shared_ptr<Bootstrap>> {
    constexpr std::string_view kFile = "file:";
    if (options.id.starts_with(kFile)) {  // whose content is its last writer's: each job has one of its own
      std::string const path = options.id.substr(kFile.size()) + (options.job.empty() ? "" : "." + options.job);
      return mori_ep::join_file(path, options.rank, options.world, tcp);
    }
    return mori_ep::join_tcp(options.id, options.rank, options.world, tcp);
  };
  return run_as_rank(options.rank, options, problems, join, campaign, true).exit_code;
}

}  // namespace ep_bench
