// SPDX-License-Identifier: MIT
//! @file ep_bench's command line.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "campaign.hpp"
#include "doctor.hpp"
#include "gpu/gpu.hpp"
#include "launcher.hpp"
#include "no_memory.hpp"
#include "quantisation.hpp"
#include "workload/whole_number.hpp"

namespace {

using ep_bench::Format;
using ep_bench::Options;
using ep_bench::RanksAre;
using ep_bench::UsageError;
using mori_ep::workload::whole_number;

void add_options(CLI::App& app, Options& o) {
  auto const positive = whole_number(1, 1 << 30);
  o.tokens = {128, 512, 1024};
  o.hidden = {7168};
  o.topk = {8};
  o.dtypes = {"bf16"};
  static const std::map<std::string, Format> formats = {
      {"table", Format::table}, {"csv", Format::csv}, {"json", Format::json}};
  app.add_option("--tokens", o.tokens, "Tokens of each rank, 0 for empty batches; a list gives one row each")
      ->delimiter(',')
      ->check(whole_number(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--hidden", o.hidden, "Elements per row; list")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  app.add_option("--topk", o.topk, "Experts per token; list. With file:, the log's")
      ->delimiter(',')
      ->check(positive)
      ->capture_default_str();
  app.add_option("--experts", o.experts, "Experts of all ranks together")->check(positive)->capture_default_str();
  app.add_option("--dtype", o.dtypes, "bf16, fp16, fp32; list")
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}))
      ->capture_default_str();
  app.add_option("--routing", o.routing, "uniform, zipf, grouped, one-hot, or file:PATH (a routing log, JSON lines)")
      ->capture_default_str();
  app.add_option("--iterations", o.iterations, "Timed iterations per row")->check(positive)->capture_default_str();
  app.add_option("--warmup", o.warmup, "Iterations before those")
      ->check(whole_number(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--blocks", o.blocks,
                 "Blocks per launch; 0: the machine's default (10 with --exec cuda --schedule v1)")
      ->check(whole_number(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--warps", o.warps, "Warps (threads, on the host) per block; 0: the machine's default")
      ->check(whole_number(0, 1 << 30))
      ->capture_default_str();
  app.add_option("--seed", o.seed, "Of routes and payload")->check(whole_number(0, UINT64_MAX))->capture_default_str();
  app.add_option("--format", o.format, "table, csv or json, on stdout")
      ->transform(CLI::CheckedTransformer(formats).description("{table,csv,json}"))
      ->default_str("table");
  app.add_flag("--per-rank", o.per_rank, "Also what each rank received and took (table, json)");
  app.add_flag_function(
      "--explain",
      [](std::int64_t) {
        ep_bench::explain(std::cout);
        std::exit(0);
      },
      "What is timed, what every column means, what is checked");
}

//! Letters that a file may have in its name, too.
std::string check_job_name(const std::string& text) {
  bool const fits = !text.empty() && text.size() <= 63 && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
  return fits ? "" : "\"" + text + "\" is not 1 to 63 letters, digits, '-', '_' or '.'";
}

//! Who starts the ranks: this process's options before a launcher, the launcher before threads.
void choose_ranks(const CLI::App& app, Options& o, int spawned) {
  auto const given = [&](const char* name) { return app.count(name) > 0; };
  int const launched = ep_bench::launched_processes();
  const char* how = "";
  if (given("--spawn")) {
    o.ranks_are = RanksAre::spawned;
    o.world = spawned;
    o.world_option = how = "--spawn";
    if (launched > 1)
      throw UsageError("--spawn under a launcher that has started " + std::to_string(launched) +
                       " processes: leave --spawn out, or the launcher.");
  } else if (given("--rank")) {
    o.ranks_are = RanksAre::joined;
    how = "--rank";
  } else if (launched > 1) {
    o.ranks_are = RanksAre::mpi;
    how = "mpirun";
    o.world_option = "mpirun -np";
    if (given("--world") && o.world != launched)
      throw UsageError("--world " + std::to_string(o.world) + ", but the launcher has started " +
                       std::to_string(launched) + " processes: leave --world out.");
    o.world = launched;
  }
  if (o.exec == "cuda" && o.ranks_are != RanksAre::threads)
    throw UsageError(std::string("--exec cuda and ") + how +
                     ": ranks on GPUs must be of one process, since GPU memory is not shared between processes yet. "
                     "Leave " +
                     how + " out.");
}

//! What rows are on the wire.
void check_quant(const Options& o) {
  if (o.quant == "none") return;
  if (o.schedule != "intranode") throw UsageError("--quant " + o.quant + " goes with --schedule intranode.");
  for (auto const& dtype : o.dtypes)
    if (dtype != "bf16") throw UsageError("--quant " + o.quant + " goes with --dtype bf16.");
  bool const combines = o.quant != "fp8-dispatch" && o.quant != "fp8-carried";
  if (combines && !o.external)
    throw UsageError("--quant " + o.quant +
                     " codes the rows of combine, so there is no buffer to write them to: add --external.");
  int const unit = o.quant == "fp4-blockwise" ? 32 : 16;
  for (int hidden : o.hidden)
    if (hidden % unit != 0)
      throw UsageError("--hidden " + std::to_string(hidden) + ": with --quant " + o.quant + " give a multiple of " +
                       std::to_string(unit) + ".");
}

//! Nodes and what joins them.
void choose_network(Options& o) {
  bool const near = o.schedule == "intranode";
  if (near && (o.nodes > 1 || !o.transport.empty()))
    throw UsageError("--nodes and --transport go with --schedule internode or v1.");
  if (o.schedule != "v1" && o.rows_per_put != 0) throw UsageError("--rows-per-put goes with --schedule v1.");
  if (o.transport.empty()) o.transport = near ? "xgmi" : "loopback";
  if (o.nodes == 0) o.nodes = near ? 1 : 2;
  if (near) return;
  bool const on_gpus = o.exec != "host";
  if (on_gpus && (o.schedule != "v1" || o.transport != "loopback"))
    throw UsageError("--exec " + o.exec + " goes with --schedule intranode, or v1 over --transport loopback.");
  if (on_gpus && (o.world > 16 || o.devices > 1))
    throw UsageError("--exec " + o.exec + " --schedule v1 is for 16 ranks at most, on one device: give --world 16.");
  if (o.nodes > o.world)
    throw UsageError("--nodes " + std::to_string(o.nodes) + " of " + std::to_string(o.world) +
                     " ranks: a node has at least one.");
  int const of_node = (o.world + o.nodes - 1) / o.nodes, made = (o.world + of_node - 1) / of_node;
  if (made != o.nodes)
    throw UsageError("--nodes " + std::to_string(o.nodes) + ": " + std::to_string(o.world) + " ranks by " +
                     std::to_string(of_node) + " make " + std::to_string(made) + " nodes. Give that, or other ranks.");
  if (o.transport == "loopback" && o.ranks_are != RanksAre::threads)
    throw UsageError("--transport loopback is a network inside one process: give --world alone, or --transport verbs.");
  for (const std::string& dtype : o.dtypes)
    if ((o.transport == "verbs" || on_gpus) && dtype != "bf16")
      throw UsageError((on_gpus ? "--exec " + o.exec + " --schedule v1" : std::string("--transport verbs")) +
                       " goes with --dtype bf16, not " + dtype + ".");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Measures mori_ep's dispatch and combine, checking every byte before and after; doctor looks at the machine.",
      "ep_bench");
  app.set_version_flag("--version", ep_bench::version());
  app.require_subcommand(1);
  app.failure_message([](const CLI::App* a, const CLI::Error& e) {
    return "ep_bench: " + std::string(e.what()) + ". See " + a->get_name() + " --help.\n";
  });

  Options run_options, mpi_options;
  auto* run = app.add_subcommand("run", "Time mori_ep against memcpy, with ranks as threads or as processes");
  run->add_option("--exec", run_options.exec, "Where the ranks run: host or cuda")
      ->check(CLI::IsMember({"host", "cuda"}))
      ->capture_default_str();
  auto* world = run->add_option("--world", run_options.world, "Ranks: threads, or processes with --rank");
  world->check(whole_number(1, 8192))->capture_default_str();
  int spawned = 0;
  auto* spawn = run->add_option("--spawn", spawned, "Start so many processes, a rank each, that join over TCP");
  spawn->check(whole_number(1, 8192))->excludes(world);
  auto* rank = run->add_option("--rank", run_options.rank, "This process is one rank of --world; see --id");
  auto* id = run->add_option("--id", run_options.id,
                             "With --rank: where all meet, host:port of rank 0's host and a free port, or file:PATH");
  rank->check(whole_number(0, 8191))->needs(world)->needs(id)->excludes(spawn);
  id->needs(rank);
  run->add_option("--job", run_options.job,
                  "With --id: a name that its ranks give alike, where another job may be given the same --id")
      ->check(CLI::Validator(check_job_name, "NAME"))
      ->needs(id);
  add_options(*run, run_options);
  run->add_option("--schedule", run_options.schedule, "intranode, internode or v1: one copy for each rank, or node")
      ->check(CLI::IsMember({"intranode", "internode", "v1"}))
      ->capture_default_str();
  run->add_option("--nodes", run_options.nodes, "Nodes that the ranks make, side by side (internode, v1: 2)")
      ->check(whole_number(1, 8192));
  run->add_option("--transport", run_options.transport,
                  "Between nodes: loopback, a network inside this process (default), or verbs, RDMA, with bf16")
      ->check(CLI::IsMember({"loopback", "verbs"}));
  run->add_option("--rows-per-put", run_options.rows_per_put,
                  "v1: rows of a chunk; 0: as many as 256 KiB hold (1.5 MiB with --exec cuda)")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  run->add_flag("--stats", run_options.stats, "Also what each rank put to each peer (table, json)");
  run->add_option(
         "--quant", run_options.quant,
         "What rows are on the wire: none; fp8-cast, fp8-blockwise, fp4-blockwise: of combine (then --external); "
         "fp8-dispatch: bf16 becomes fp8 on the way to the experts; fp8-carried: it is fp8 already")
      ->check(CLI::IsMember(ep_bench::kQuants))
      ->capture_default_str();
  bool zero_copy = false;
  auto* external =
      run->add_flag("--external", run_options.external, "Combine stages its rows from the caller's buffer");
  run->add_flag("--zero-copy", zero_copy, "Combine's rows lie in the registered buffer (default)")->excludes(external);
  run->add_option("--devices", run_options.devices, "cuda: spread the ranks over the first so many devices")
      ->check(whole_number(1, 8192))
      ->capture_default_str();
  run->add_flag("--graph", run_options.graph, "cuda: replay captured graphs instead of launching anew");
  std::string cache = "cold";
  run->add_option("--l2", cache, "cuda: cold sweeps the second-level cache before each phase, warm leaves it as it is")
      ->check(CLI::IsMember({"cold", "warm"}))
      ->capture_default_str();
  run->add_option("--save", run_options.save, "Write the JSON form to this file, too");
  run->footer(
      "Exit codes: 0 ok, 1 wrong data or a rank that failed, 2 usage, 3 no device for --exec cuda.\n"
      "Example: ep_bench run --tokens 128,512,1024,4096 --format json > run.json\n"
      "Ranks as processes of this host, rank 0 prints:\n"
      "         ep_bench run --spawn 8\n"
      "         mpirun --oversubscribe -np 8 ep_bench run\n"
      "         for r in 0 1 2 3; do ep_bench run --rank $r --world 4 --id 127.0.0.1:29400 & done; wait\n"
      "On GPUs:\n"
      "         ep_bench run --exec cuda --graph --tokens 0,16,128,1024,4096 --iterations 500 --save run.json");

  auto* mpi = app.add_subcommand("mpi-baseline", "Time mori_ep against pack + MPI_Alltoallv + unpack, under mpirun");
  add_options(*mpi, mpi_options);
  mpi->footer(
      "The world is mpirun's -np. Exit codes: 0 ok, 1 wrong data, 2 usage.\n"
      "Example: mpirun --oversubscribe -np 8 ep_bench mpi-baseline --tokens 128,512,1024\n"
      "As root: mpirun --allow-run-as-root --oversubscribe -np 8 ep_bench mpi-baseline --tokens 128,512,1024\n"
      "Waiting MPI processes yield their core (OMPI_MCA_mpi_yield_when_idle=1 is set unless you set it).");

  ep_bench::DoctorOptions doctor_options;
  std::string doctor_format = "table";
  auto* doctor = app.add_subcommand("doctor", "Print every environment variable, and check what ranks need here");
  doctor->add_option("--world", doctor_options.world, "Ranks on this machine")
      ->check(whole_number(1, 8192))
      ->capture_default_str();
  doctor->add_option("--heap", doctor_options.heap,
                     "Symmetric heap of each rank, in bytes or as 4G; default: not asked");
  doctor->add_option("--format", doctor_format, "table or json, on stdout")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  doctor->footer(
      "Exit codes: 0 no check failed, 1 one did, 2 usage.\n"
      "Example: ep_bench doctor --world 8 --heap 1.5G --format json");

  try {
    app.parse(argc, argv);
    if (doctor->parsed()) {
      doctor_options.json = doctor_format == "json";
      return ep_bench::doctor(doctor_options);
    }
    Options& options = run->parsed() ? run_options : mpi_options;
    auto* chosen = run->parsed() ? run : mpi;
    options.topk_given = chosen->count("--topk") > 0;
    for (int i = 0; i < argc; ++i) options.flags += (i == 0 ? "" : " ") + std::string(argv[i]);
    if (options.stats && options.schedule == "intranode")
      throw UsageError("--stats goes with --schedule internode or v1: else nothing is put over a network.");
    if (options.stats && options.format == Format::csv) throw UsageError("--stats goes with --format table or json.");
    if (options.per_rank && options.format == Format::csv)
      throw UsageError("--per-rank goes with --format table or json.");
    for (auto const* name : {"--devices", "--graph", "--l2"})
      if (run->parsed() && run_options.exec == "host" && run->count(name) > 0)
        throw UsageError(std::string(name) + " goes with --exec cuda.");
    run_options.cold = cache == "cold";
    if (run->parsed()) choose_ranks(*run, options, spawned);
    choose_network(options);
    check_quant(options);
    auto const environment = mori_ep::Environment::from_process();
    if (!environment.ok()) throw UsageError(environment.message());
    options.environment = *environment;
    return run->parsed() ? ep_bench::run(options) : ep_bench::mpi_baseline(options);
  } catch (const CLI::ParseError& error) {
    bool const quiet = error.get_exit_code() != 0 && !ep_bench::first_process();
    return (quiet ? error.get_exit_code() : app.exit(error)) == 0 ? 0 : 2;
  } catch (const UsageError& error) {
    std::string const who = run_options.rank > 0 ? "rank " + std::to_string(run_options.rank) + ": " : "";
    if (ep_bench::first_process()) std::fprintf(stderr, "ep_bench: %s%s\n", who.c_str(), error.what());
    return 2;
  } catch (const ep_bench::NoDevice& error) {
    std::fprintf(stderr, "ep_bench: %s\n", error.what());
    return 3;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ep_bench: %s\n", ep_bench::text_of(error).c_str());
    return 1;
  }
}
