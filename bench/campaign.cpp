// SPDX-License-Identifier: MIT
#include "campaign.hpp"

#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <utility>

#include <unistd.h>

#include "gpu/gpu.hpp"
#include "host_ceilings.hpp"
#include "no_memory.hpp"
#include "process_ranks.hpp"
#include "quantisation.hpp"
#include "ranks.hpp"
#include "workload/routes.hpp"

namespace ep_bench {
namespace {

namespace workload = mori_ep::workload;
constexpr const char* kFilePrefix = "file:";

void require_memory(const Config& c, std::int64_t needed) {
  if (std::int64_t const available = available_bytes(); needed > available)
    throw UsageError("--tokens " + std::to_string(c.tokens) + " needs at least " + bytes_text(needed) + " and " +
                     bytes_text(available) + " are free: give fewer --tokens, or a smaller --hidden or " +
                     c.world_option + ".");
}

//! Every process maps all arenas whole, also the pages that nobody touches; its own is a file in memory.
void require_limits(const Config& c) {
  auto const arena = static_cast<std::int64_t>(footprint(c).bytes);
  std::int64_t const rows = 2 * std::int64_t{c.processes ? 1 : c.world} * c.tokens;
  std::int64_t const mapped = c.world * arena + rows * static_cast<std::int64_t>(c.row_bytes());
  auto const refuse = [&](const std::string& what, const std::string& option) {
    throw UsageError("--tokens " + std::to_string(c.tokens) + ": " + what + ": raise it (" + option +
                     " unlimited), or give fewer --tokens, or a smaller --hidden or " + c.world_option + ".");
  };
  if (auto const left = address_space_left(); left && mapped > *left)
    refuse("a process maps at least " + bytes_text(mapped) + ", and the limit of address space leaves it " +
               bytes_text(*left),
           "ulimit -v");
  if (auto const limit = limit_of(RLIMIT_FSIZE); limit && c.processes && arena > *limit)
    refuse("a rank's arena is a file in memory of " + bytes_text(arena) + ", and files may have " + bytes_text(*limit),
           "ulimit -f");
}

//! A bar when stderr is a terminal; otherwise a line when a configuration is done.
class ProgressLine {
 public:
  ProgressLine(const Config& c, std::size_t before, std::size_t all)
      : terminal_(::isatty(STDERR_FILENO) == 1),
        label_("[" + std::to_string(before + 1) + "/" + std::to_string(all) + "] " + std::to_string(c.tokens) +
               " tokens, hidden " + std::to_string(c.hidden) + ", " + c.dtype) {}
  void operator()(double done) {
    constexpr int kCells = 30;
    int const cells = static_cast<int>(done * kCells);
    if (!terminal_ || cells == shown_) return;
    shown_ = cells;
    std::fprintf(stderr, "\r%s [%-*s]", label_.c_str(), kCells,
                 std::string(static_cast<std::size_t>(cells), '#').c_str());
  }
  void finish(const Outcome& outcome) const {
    const Phases& p = outcome.phases;
    std::fprintf(stderr, "%s%s: ", terminal_ ? "\r\033[K" : "", label_.c_str());
    if (outcome.ok())
      std::fprintf(stderr, "dispatch %.1f us, combine %.1f us, pair %.1f us, ok\n", p.dispatch.p50_us(),
                   p.combine.p50_us(), p.pair.p50_us());
    else
      std::fprintf(stderr, "FAILED\n  %s\n", outcome.check.c_str());
  }

 private:
  bool terminal_;
  std::string label_;
  int shown_ = -1;
};

}  // namespace

std::vector<Problem> make_problems(const Options& o) {
  if (o.experts % o.world != 0)
    throw UsageError("--experts " + std::to_string(o.experts) + " is not a multiple of " + o.world_option + " " +
                     std::to_string(o.world) + ": every rank hosts the same number. Give --experts " +
                     std::to_string((o.experts / o.world + 1) * o.world) + ", or another " + o.world_option + ".");
  bool const on_host = o.exec == "host";
  if (on_host) {  // a device's own limits are for its operator to say
    using mori_ep::exec::Host;
    auto const launch =
        mori_ep::launch::resolve({o.blocks, o.warps}, {}, {.residency = Host::residency<int>([](int) { return 0; })});
    if (!launch.ok()) throw UsageError(launch.message());
  }
  std::optional<workload::Routes> log;
  std::vector<int> topks = o.topk;
  auto const kind = workload::parse_routing(o.routing);
  if (o.routing.rfind(kFilePrefix, 0) == 0) {
    try {
      log = workload::read_route_log(o.routing.substr(std::string(kFilePrefix).size()), o.experts);
    } catch (const std::exception& error) {
      throw UsageError(std::string(error.what()) +
                       ". Give a log of JSON lines with topk_ids and topk_weights, and its "
                       "--experts.");
    }
    if (!o.topk_given) topks = {log->topk};
    for (int topk : topks)
      if (topk != log->topk)
        throw UsageError("--topk " + std::to_string(topk) + ", but the log has " + std::to_string(log->topk) +
                         " ids per token: leave --topk out.");
  } else if (!kind) {
    throw UsageError("--routing '" + o.routing + "': give " + workload::kRoutingNames + ", or file:PATH.");
  }

  // Where kernels are a network, too, those of the ranks leave it room, and each launch carries much
  // (fabric::DeviceLoopback).
  constexpr int kBlocksBesideCarriers = 10;
  constexpr std::size_t kBytesOfCarrier = std::size_t{3} << 19;
  bool const carried = !on_host && o.schedule != "intranode";
  int const blocks = o.blocks == 0 && carried ? kBlocksBesideCarriers : o.blocks;
  std::vector<Problem> problems;
  for (auto const& dtype : o.dtypes)
    for (int hidden : o.hidden)
      for (int topk : topks)
        for (int tokens : o.tokens) {
          Config config{.world = o.world,
                        .world_option = o.world_option,
                        .tokens = tokens,
                        .hidden = hidden,
                        .topk = topk,
                        .experts = o.experts,
                        .dtype = dtype,
                        .quant = o.quant,
                        .schedule = o.schedule,
                        .transport = o.transport,
                        .nodes = o.nodes,
                        .routing = o.routing,
                        .external = o.external,
                        .rows_per_put = o.rows_per_put,
                        .launch = {.block_num = blocks, .warp_per_block = o.warps},
                        .iterations = o.iterations,
                        .warmup = o.warmup,
                        .seed = o.seed,
                        .exec = o.exec,
                        .processes = o.ranks_are != RanksAre::threads,
                        .devices = on_host ? 0 : o.devices,
                        .graph = !on_host && o.graph,
                        .cold = !on_host && o.cold};
          with_quant(config, [&]<class Quant>(Quant*) {
            config.received_bytes = Coding<Quant>::received_bytes(static_cast<std::size_t>(hidden));
            config.combined_bytes = Coding<Quant>::combined_bytes(static_cast<std::size_t>(hidden));
          });
          if (carried && config.rows_per_put == 0)
            config.rows_per_put = std::max(1, static_cast<int>(kBytesOfCarrier / config.row_bytes()));
          (void)footprint(config);  // the library's own verdict comes before any work
          if (on_host) require_limits(config);
          std::int64_t const all = std::int64_t{tokens} * o.world;
          // Routes are large too: what cannot fit by inputs and outputs alone is refused before they are made.
          require_memory(config, 2 * all * static_cast<std::int64_t>(config.row_bytes()));
          try {
            constexpr std::uint64_t kPairBytes = sizeof(std::int32_t) + sizeof(float);
            with_memory_for("the routes of " + std::to_string(all) + " tokens",
                            static_cast<std::uint64_t>(all) * static_cast<std::uint64_t>(topk) * kPairBytes, [&] {
                              problems.emplace_back(config, log ? workload::take_tokens(*log, all)
                                                                : workload::generate_routes(*kind, all, topk, o.experts,
                                                                                            o.world, o.seed));
                            });
          } catch (const std::invalid_argument& error) {
            throw UsageError(error.what());
          }
        }
  return problems;
}

void warn_of_noise(const Machine& machine) {
  if (machine.load_average > 1)
    std::fprintf(stderr, "ep_bench: warning: load average %.2f: this machine is busy, timings will be off\n",
                 machine.load_average);
  if (auto const why = unfit_build(); !why.empty()) std::fprintf(stderr, "ep_bench: warning: %s\n", why.c_str());
}

void check_memory(const Problem& problem, std::int64_t more) {
  const Config& c = problem.config();
  std::int64_t const available = available_bytes();
  require_memory(c, needed_bytes(problem) + more);
  std::int64_t const arenas = c.world * static_cast<std::int64_t>(footprint(c).bytes);
  if (arenas > available)
    std::fprintf(stderr,
                 "ep_bench: warning: the arenas of %d tokens are %s and %s are free; what this routing touches fits, "
                 "another may not\n",
                 c.tokens, bytes_text(arenas).c_str(), bytes_text(available).c_str());
}

Row run_mori(const Problem& problem, Ranks& ranks, std::size_t before, std::size_t all) {
  Row row{.config = problem.config(),
          .footprint = footprint(problem.config()),
          .hop_bytes = problem.hop_bytes(),
          .staging_bytes = problem.staging_bytes(),
          .rows_received = {},
          .rows = problem.rows(),
          .pairs = problem.pairs(),
          .crossing = problem.crossing(),
          .link_rows = problem.most_link_rows(),
          .mori = {},
          .mpi = {}};
  for (int rank = 0; rank < row.config.world; ++rank) row.rows_received.push_back(problem.received(rank).size());
  ProgressLine progress(row.config, before, all);
  row.mori = ranks.measure(problem, [&](double done) { progress(done); });
  if (ranks.first()) progress.finish(row.mori);
  return row;
}

namespace {

class GpuRanks final : public OneProcess {
 public:
  [[nodiscard]] Outcome measure(const Problem& problem, const Progress& progress) override {
    return run_gpu(problem, progress);
  }
};

//! All problems, between two looks at the ceilings.
//! @param make_ceilings called in the first process, the only one that measures and prints
template <class F>
int run_campaign(const Options& options, const std::vector<Problem>& problems, const std::optional<Devices>& devices,
                 Ranks& ranks, F&& make_ceilings) {
  Report report{.machine = Machine::here(),
                .devices = devices,
                .flags = options.flags,
                .mpi = "",
                .seed = options.seed,
                .per_rank = options.per_rank,
                .stats = options.stats,
                .ceilings = nullptr,
                .rows = {}};
  std::ofstream saved;
  std::optional<decltype(make_ceilings())> ceilings;
  ranks.alone([&] {
    for (auto const& problem : problems) devices ? check_device_memory(problem) : check_memory(problem);
    if (!options.save.empty()) {
      saved.open(options.save);
      if (!saved) throw UsageError("--save " + options.save + ": cannot write there.");
    }
    warn_of_noise(report.machine);
    ceilings.emplace(make_ceilings()).measure();
  });
  for (auto const& problem : problems)
    report.rows.push_back(run_mori(problem, ranks, report.rows.size(), problems.size()));
  ranks.alone([&] {
    ceilings->measure();
    report.ceilings = &*ceilings;
    print(std::cout, report, options.format);
    if (!saved.is_open()) return;
    print(saved, report, Format::json);
    saved.close();
    if (!saved) throw std::runtime_error("--save " + options.save + ": writing failed.");
  });
  return report.ok() ? 0 : 1;
}

}  // namespace

int run(const Options& options) {
  bool const on_host = options.exec == "host";
  std::optional<Devices> devices;
  if (!on_host) {
    set_gpu_environment();
    devices = open_devices(options.devices, options.world);
  }
  auto const problems = make_problems(options);
  if (!on_host) {
    GpuRanks ranks;
    return run_campaign(options, problems, devices, ranks, [&] { return GpuCeilings(options.devices); });
  }
  auto const campaign = [&](Ranks& ranks) {
    return run_campaign(options, problems, {}, ranks, [&] { return HostCeilings(options.world); });
  };
  switch (options.ranks_are) {
    case RanksAre::threads:
      break;
    case RanksAre::spawned:
      return run_spawned(options, problems.size(), campaign);
    case RanksAre::mpi:
      return run_under_mpi(options, problems.size(), campaign);
    case RanksAre::joined:
      return run_joined(options, problems.size(), campaign);
  }
  ThreadRanks ranks(options.environment);
  return campaign(ranks);
}

}  // namespace ep_bench
