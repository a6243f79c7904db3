// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "mori_ep/version.hpp"

namespace ep_bench {
namespace {

using Json = nlohmann::ordered_json;
using Cells = std::vector<std::string>;

std::string fixed(double value, int digits) {
  if (std::isnan(value)) return "-";  // not measured: the check failed
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

double ratio(double a, double b) { return a / b; }

//! The three phases by name, in the order of every form of the report.
template <class F>
void for_each_phase(const Phases& phases, F&& f) {
  f("dispatch", phases.dispatch);
  f("combine", phases.combine);
  f("pair", phases.pair);
}

//! What the row loops would give each phase: dispatch reads one row and writes several, combine the reverse, staging is
//! a copy.
struct MixCeilings {
  double dispatch, combine, pair;
  MixCeilings(const Row& row, const Ceilings& ceilings) {
    const Phases& p = row.mori.phases;
    double const hops = row.hop_bytes / ceilings.gbps();  // of each phase
    double const d = p.dispatch.bytes / ceilings.read1_write5() + hops;
    double const c =
        (p.combine.bytes - row.staging_bytes) / ceilings.read5_write1() + row.staging_bytes / ceilings.gbps() + hops;
    dispatch = ratio(p.dispatch.bytes, d);
    combine = ratio(p.combine.bytes, c);
    pair = ratio(p.dispatch.bytes + p.combine.bytes, d + c);
  }
  [[nodiscard]] double of(std::string_view phase) const {
    return phase == "dispatch" ? dispatch : phase == "combine" ? combine : pair;
  }
};

//! What one phase moved between nodes.
struct NodeFigures {
  double xgmi_gbps, rdma_gbps, wire_bytes, wire_per_row, wire_gbps;
  NodeFigures(const Row& row, const Phase& phase, double wire) {
    auto const bytes = [&](std::size_t rows) { return static_cast<double>(rows * row.config.row_bytes()); };
    xgmi_gbps = bytes(row.rows) / phase.p50_us() / 1e3;
    rdma_gbps = bytes(row.pairs) / phase.p50_us() / 1e3;
    wire_bytes = wire;
    wire_per_row = ratio(wire, bytes(row.crossing));
    wire_gbps = wire / phase.p50_us() / 1e3;
  }
};

//! What one phase moved over the links of the device with most rows, one way, against what plain kernels do there.
struct LinkFigures {
  double bytes, gbps, push, pull;
  LinkFigures(const Row& row, std::string_view name, const Phase& phase, const Links& links)
      : bytes(static_cast<double>(row.link_rows) *
              static_cast<double>((name == "combine" ? 0 : row.config.received_bytes) +
                                  (name == "dispatch" ? 0 : row.config.combined_bytes))),
        gbps(bytes / phase.p50_us() / 1e3),
        push(ratio(gbps, links.push())),
        pull(ratio(gbps, links.pull())) {}
};

void print_aligned(std::ostream& out, const std::vector<Cells>& table) {
  std::vector<std::size_t> widths(table.front().size());
  for (auto const& row : table)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (auto const& row : table) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += (i == 0 ? "" : row[i] == "|" ? " " : "  ") + std::string(widths[i] - row[i].size(), ' ') + row[i];
    out << line << '\n';
  }
}

void append(Cells& to, Cells from) { std::move(from.begin(), from.end(), std::back_inserter(to)); }

Cells config_cells(const Config& c) {
  return {std::to_string(c.tokens),
          std::to_string(c.hidden),
          std::to_string(c.topk),
          std::to_string(c.experts),
          c.dtype,
          c.routing};
}
Cells const kConfigHead = {"tokens", "hidden", "topk", "experts", "dtype", "routing"};

std::string compiler() {
#if defined(__clang__)
  return "clang " __clang_version__;
#else
  return "g++ " __VERSION__;
#endif
}

std::string blocks_text(const mori_ep::launch::LaunchParams& launch) {
  return std::to_string(launch.block_num) + "x" + std::to_string(launch.warp_per_block);
}

std::vector<Cells> run_table(const Report& report) {
  double const ceiling = report.ceilings->gbps();
  bool const staged = report.rows.front().config.external, gpu = report.devices.has_value();
  Cells head = kConfigHead;
  if (gpu) append(head, {"|", "blocks", "floor us"});
  for (const char* phase : {"d", "c", "d+c"}) {
    std::string const p = phase;
    append(head, {"|", p + " p50us"});
    if (gpu) append(head, {"over", "min"});
    append(head, {"p99us", "MB", "GB/s", "ratio", "mix"});
  }
  append(head, {"|", "MiB/rank", "foot"});
  if (staged) head.push_back("staged MB");
  head.push_back("check");
  std::vector<Cells> table = {head};
  for (auto const& row : report.rows) {
    Cells cells = config_cells(row.config);
    MixCeilings const mix(row, *report.ceilings);
    double const floor = percentile(row.mori.floor_us, 50);
    if (gpu) append(cells, {"|", blocks_text(row.mori.launch), fixed(floor, 1)});
    for_each_phase(row.mori.phases, [&](const char* name, const Phase& p) {
      append(cells, {"|", fixed(p.p50_us(), 1)});
      if (gpu) append(cells, {fixed(p.p50_us() - floor, 1), fixed(p.min_us(), 1)});
      append(cells, {fixed(p.p99_us(), 1), fixed(p.bytes / 1e6, 1), fixed(p.gbps(), gpu ? 0 : 2),
                     fixed(ratio(p.gbps(), ceiling), 3), fixed(ratio(p.gbps(), mix.of(name)), 3)});
    });
    append(
        cells,
        {"|", fixed(static_cast<double>(row.footprint.bytes) / (1 << 20), 1),
         fixed(ratio(static_cast<double>(row.footprint.bytes), static_cast<double>(row.footprint.contract_bytes)), 4)});
    if (staged) cells.push_back(fixed(row.staging_bytes / 1e6, 1));
    cells.push_back(row.mori.ok() ? "ok" : "FAILED");
    table.push_back(cells);
  }
  return table;
}

//! What crossed between nodes; bytes per second as MORI's guide counts them, and as they were.
std::vector<Cells> nodes_table(const Report& report) {
  Cells head = kConfigHead;
  append(head, {"|", "rows", "pairs", "crossing"});
  for (const char* phase : {"d", "c"}) {
    std::string const p = phase;
    append(head, {"|", p + " XGMI GB/s", "RDMA GB/s", "wire MB", "wire/row", "wire GB/s"});
  }
  std::vector<Cells> table = {head};
  for (auto const& row : report.rows) {
    if (!row.mori.wire) continue;
    Cells cells = config_cells(row.config);
    append(cells, {"|", std::to_string(row.rows), std::to_string(row.pairs), std::to_string(row.crossing)});
    NodeFigures const figures[] = {{row, row.mori.phases.dispatch, row.mori.wire->dispatch_bytes},
                                   {row, row.mori.phases.combine, row.mori.wire->combine_bytes}};
    for (const NodeFigures& f : figures)
      append(cells, {"|", fixed(f.xgmi_gbps, 3), fixed(f.rdma_gbps, 3), fixed(f.wire_bytes / 1e6, 2),
                     fixed(f.wire_per_row, 4), fixed(f.wire_gbps, 3)});
    table.push_back(cells);
  }
  return table;
}

//! What crossed between devices.
std::vector<Cells> links_table(const Report& report) {
  Cells head = kConfigHead;
  for (const char* phase : {"d", "c", "d+c"}) append(head, {"|", phase + std::string(" MB"), "GB/s", "push", "pull"});
  std::vector<Cells> table = {head};
  for (auto const& row : report.rows) {
    Cells cells = config_cells(row.config);
    for_each_phase(row.mori.phases, [&](const char* name, const Phase& p) {
      LinkFigures const f(row, name, p, report.ceilings->links);
      append(cells, {"|", fixed(f.bytes / 1e6, 1), fixed(f.gbps, 1), fixed(f.push, 3), fixed(f.pull, 3)});
    });
    table.push_back(cells);
  }
  return table;
}

std::vector<Cells> stats_table(const Report& report) {
  Cells head = kConfigHead;
  append(head, {"|", "rank", "peer", "MB", "messages", "refusals", "completions", "errors", "longest us"});
  std::vector<Cells> table = {head};
  for (auto const& row : report.rows) {
    if (!row.mori.wire) continue;
    auto const world = static_cast<std::size_t>(row.config.world);
    for (std::size_t i = 0; i < row.mori.wire->traffic.size(); ++i) {
      const mori_ep::fabric::Traffic& t = row.mori.wire->traffic[i];
      if (t.messages == 0) continue;
      Cells cells = config_cells(row.config);
      append(cells,
             {"|", std::to_string(i / world), std::to_string(i % world), fixed(static_cast<double>(t.bytes) / 1e6, 3),
              std::to_string(t.messages), std::to_string(t.refusals), std::to_string(t.completions),
              std::to_string(t.errors), fixed(static_cast<double>(t.longest_wait_ns) / 1e3, 1)});
      table.push_back(cells);
    }
  }
  return table;
}

std::vector<Cells> mpi_table(const Report& report) {
  Cells head = kConfigHead;
  for (const char* phase : {"d", "c", "d+c"}) {
    std::string const p = phase;
    append(head, {"|", p + " us", "ratio", "MPI us", "ratio", "mori/MPI"});
  }
  append(head, {"|", "foot", "check", "MPI check"});
  std::vector<Cells> table = {head};
  double const ceiling = report.ceilings->gbps();
  for (auto const& row : report.rows) {
    Cells cells = config_cells(row.config);
    Phases const& mpi = row.mpi->phases;
    const Phase* theirs[] = {&mpi.dispatch, &mpi.combine, &mpi.pair};
    int i = 0;
    for_each_phase(row.mori.phases, [&](const char*, const Phase& p) {
      const Phase& m = *theirs[i++];
      append(cells, {"|", fixed(p.p50_us(), 1), fixed(ratio(p.gbps(), ceiling), 3), fixed(m.p50_us(), 1),
                     fixed(ratio(m.gbps(), ceiling), 3), fixed(ratio(p.p50_us(), m.p50_us()), 3)});
    });
    append(
        cells,
        {"|",
         fixed(ratio(static_cast<double>(row.footprint.bytes), static_cast<double>(row.footprint.contract_bytes)), 4),
         row.mori.ok() ? "ok" : "FAILED", row.mpi->ok() ? "ok" : "FAILED"});
    table.push_back(cells);
  }
  return table;
}

std::string where_text(const Report& report) {
  const Config& c = report.rows.front().config;
  if (!report.devices) return " on the host, " + std::to_string(c.world) + " ranks as " + c.ranks_as();
  const Devices& d = *report.devices;
  return " on " + c.exec + ", " + std::to_string(c.world) + " ranks on " + std::to_string(d.used) + " x " + d.name +
         (c.graph ? ", graph replay" : ", eager launches") + (c.cold ? ", cold cache" : ", warm cache");
}

void print_table(std::ostream& out, const Report& report) {
  const Config& c = report.rows.front().config;
  const Machine& m = report.machine;
  out << "# ep_bench " << version() << ": " << c.schedule << where_text(report) << ", "
      << (c.external ? "combine input staged" : "zero-copy combine") << (c.quant == "none" ? "" : ", " + c.quant)
      << ", " << c.iterations << " iterations after " << c.warmup << ", seed " << report.seed << '\n'
      << "# " << m.cpu << ", " << m.cores << " cores, " << (m.memory_bytes >> 30) << " GiB, " << m.kernel << ", load "
      << fixed(m.load_average, 2) << "; " << compiler() << ", " << EP_BENCH_BUILD_TYPE;
  if (report.devices) out << "; driver " << report.devices->driver << ", runtime " << report.devices->runtime;
  out << '\n'
      << "# ceiling: " << report.ceilings->how << ": " << fixed(report.ceilings->gbps(), 2)
      << " GB/s read + written; row loops: 1 read 5 written " << fixed(report.ceilings->read1_write5(), 2)
      << ", 5 read 1 written " << fixed(report.ceilings->read5_write1(), 2) << '\n';
  if (auto const& best = *report.ceilings; !best.read1_write5_how.empty())
    out << "# row loops: 1 read 5 written by " << best.read1_write5_how
        << " (all blocks resident: " << fixed(Ceilings::resident(best.read1_write5_tried), 2)
        << "); 5 read 1 written by " << best.read5_write1_how << " ("
        << fixed(Ceilings::resident(best.read5_write1_tried), 2) << ")\n";
  if (auto const& links = report.ceilings->links; links.measured())
    out << "# links, all devices at once, GB/s of each in one direction: copy engine " << fixed(links.copy(), 1)
        << "; push " << fixed(links.push(), 1) << " (" << links.push_how << "); pull " << fixed(links.pull(), 1) << " ("
        << links.pull_how << ")\n";
  if (!report.mpi.empty())
    out << "# MPI: " << report.mpi << ", " << c.world << " processes; mori/MPI is mori_ep's time over MPI's\n";
  print_aligned(out, report.mpi.empty() ? run_table(report) : mpi_table(report));
  if (report.ceilings->links.measured()) {
    out << "\n# over the links of the device with most rows, one way\n";
    print_aligned(out, links_table(report));
  }
  bool const nodes = !c.near_only();
  if (nodes) {
    out << "\n# between " << c.nodes << " nodes, over " << c.transport << ": a dispatch and a combine of all ranks\n";
    print_aligned(out, nodes_table(report));
  }
  if (report.stats) {
    out << "\n# put over the network, of the whole run\n";
    print_aligned(out, stats_table(report));
  }
  if (report.per_rank) {
    out << "\n# per rank: each rank's own p50\n";
    Cells head = kConfigHead;
    append(head, {"|", "rank", "rows received", "d us", "c us", "d+c us"});
    std::vector<Cells> table = {head};
    for (auto const& row : report.rows)
      for (std::size_t r = 0; r < row.mori.phases.pair.rank_p50_us.size(); ++r) {
        Cells cells = config_cells(row.config);
        append(cells, {"|", std::to_string(r), std::to_string(row.rows_received[r])});
        for_each_phase(row.mori.phases,
                       [&](const char*, const Phase& p) { cells.push_back(fixed(p.rank_p50_us[r], 1)); });
        table.push_back(cells);
      }
    print_aligned(out, table);
  }
}

void print_csv(std::ostream& out, const Report& report) {
  bool const mpi = !report.mpi.empty(), gpu = report.devices.has_value();
  out << "world,tokens,hidden,topk,experts,dtype,quant,schedule,routing,combine_input,iterations,seed";
  auto const heads = [&](const std::string& prefix) {
    for (const char* phase : {"dispatch", "combine", "pair"})
      for (const char* figure : {"p50_us", "p99_us", "bytes", "gbps", "ceiling_gbps", "ratio", "mix_ratio"})
        out << ',' << prefix << phase << '_' << figure;
  };
  heads("");
  if (mpi) heads("mpi_");
  if (mpi) out << ",dispatch_mori_over_mpi,combine_mori_over_mpi,pair_mori_over_mpi,mpi_check";
  out << ",staging_bytes,footprint_bytes,contract_bytes,memcpy_gbps,read1_write5_gbps,read5_write1_gbps,check,ranks_as";
  if (gpu) {
    out << ",exec,devices,graph,l2,blocks,warps,device,driver,runtime,floor_us";
    for (const char* phase : {"dispatch", "combine", "pair"})
      out << ',' << phase << "_min_us," << phase << "_over_floor_us";
    out << ",link_bytes,link_copy_gbps,link_push_gbps,link_pull_gbps";
  }
  out << '\n';
  double const ceiling = report.ceilings->gbps();
  auto const fixed = [](double value, int digits) { return std::isnan(value) ? "" : ep_bench::fixed(value, digits); };
  auto const figures = [&](const Phases& phases, const MixCeilings& mix) {
    for_each_phase(phases, [&](const char* name, const Phase& p) {
      out << ',' << fixed(p.p50_us(), 3) << ',' << fixed(p.p99_us(), 3) << ',' << fixed(p.bytes, 0) << ','
          << fixed(p.gbps(), 4) << ',' << fixed(ceiling, 4) << ',' << fixed(ratio(p.gbps(), ceiling), 4) << ','
          << fixed(ratio(p.gbps(), mix.of(name)), 4);
    });
  };
  auto const quoted = [](std::string text) {
    for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
    return '"' + text + '"';
  };
  for (auto const& row : report.rows) {
    const Config& c = row.config;
    out << c.world << ',' << c.tokens << ',' << c.hidden << ',' << c.topk << ',' << c.experts << ',' << c.dtype << ','
        << c.quant << ',' << c.schedule << ',' << quoted(c.routing) << ',' << (c.external ? "external" : "zero-copy")
        << ',' << c.iterations << ',' << c.seed;
    MixCeilings const mix(row, *report.ceilings);
    figures(row.mori.phases, mix);
    if (mpi) {
      figures(row.mpi->phases, mix);
      const Phase* theirs[] = {&row.mpi->phases.dispatch, &row.mpi->phases.combine, &row.mpi->phases.pair};
      int i = 0;
      for_each_phase(row.mori.phases, [&](const char*, const Phase& p) {
        out << ',' << fixed(ratio(p.p50_us(), theirs[i++]->p50_us()), 4);
      });
      out << ',' << quoted(row.mpi->check);
    }
    out << ',' << fixed(row.staging_bytes, 0) << ',' << row.footprint.bytes << ',' << row.footprint.contract_bytes
        << ',' << fixed(ceiling, 4) << ',' << fixed(report.ceilings->read1_write5(), 4) << ','
        << fixed(report.ceilings->read5_write1(), 4) << ',' << quoted(row.mori.check) << ',' << c.ranks_as();
    if (gpu) {
      double const floor = percentile(row.mori.floor_us, 50);
      out << ',' << c.exec << ',' << c.devices << ',' << c.graph << ',' << (c.cold ? "cold" : "warm") << ','
          << row.mori.launch.block_num << ',' << row.mori.launch.warp_per_block << ',' << quoted(report.devices->name)
          << ',' << report.devices->driver << ',' << report.devices->runtime << ',' << fixed(floor, 3);
      for_each_phase(row.mori.phases, [&](const char*, const Phase& p) {
        out << ',' << fixed(p.min_us(), 3) << ',' << fixed(p.p50_us() - floor, 3);
      });
      Links const& links = report.ceilings->links;
      out << ',' << row.link_rows * c.row_bytes() << ',' << fixed(links.copy(), 4) << ',' << fixed(links.push(), 4)
          << ',' << fixed(links.pull(), 4);
    }
    out << '\n';
  }
}

Json phases_json(const Phases& phases, double ceiling, const MixCeilings& mix) {
  Json out = Json::object();
  for_each_phase(phases, [&](const char* name, const Phase& p) {
    if (p.samples_us.empty()) return;
    out[name] = {{"p50_us", p.p50_us()},
                 {"p99_us", p.p99_us()},
                 {"bytes", p.bytes},
                 {"gbps", p.gbps()},
                 {"ceiling_gbps", ceiling},
                 {"ratio", ratio(p.gbps(), ceiling)},
                 {"mix_ratio", ratio(p.gbps(), mix.of(name))},
                 {"samples_us", p.samples_us}};
  });
  return out;
}

void print_json(std::ostream& out, const Report& report) {
  const Machine& m = report.machine;
  double const ceiling = report.ceilings->gbps();
  Json results = Json::array();
  for (auto const& row : report.rows) {
    const Config& c = row.config;
    MixCeilings const mix(row, *report.ceilings);
    Json result = {{"config",
                    {{"exec", c.exec},
                     {"world", c.world},
                     {"ranks_as", c.ranks_as()},
                     {"tokens", c.tokens},
                     {"hidden", c.hidden},
                     {"topk", c.topk},
                     {"experts", c.experts},
                     {"dtype", c.dtype},
                     {"quant", c.quant},
                     {"schedule", c.schedule},
                     {"routing", c.routing},
                     {"combine_input", c.external ? "external" : "zero-copy"},
                     {"blocks", c.launch.block_num},
                     {"warps", c.launch.warp_per_block},
                     {"iterations", c.iterations},
                     {"warmup", c.warmup}}},
                   {"check", row.mori.check},
                   {"footprint",
                    {{"bytes", row.footprint.bytes},
                     {"contract_bytes", row.footprint.contract_bytes},
                     {"ratio", ratio(static_cast<double>(row.footprint.bytes),
                                     static_cast<double>(row.footprint.contract_bytes))}}},
                   {"staging_bytes", row.staging_bytes},
                   {"phases", phases_json(row.mori.phases, ceiling, mix)}};
    result["config"]["transport"] = c.transport;
    result["config"]["nodes"] = c.nodes;
    if (c.schedule == "v1") result["config"]["rows_per_put"] = c.rows_per_put;
    if (row.mori.wire) {
      const Wire& w = *row.mori.wire;
      result["nodes"] = {{"rows_received", row.rows}, {"token_node_pairs", row.pairs}, {"rows_crossing", row.crossing}};
      auto const phase = [&](const char* name, const Phase& p, double wire) {
        NodeFigures const f(row, p, wire);
        result["nodes"][name] = {{"xgmi_gbps", f.xgmi_gbps},
                                 {"rdma_gbps", f.rdma_gbps},
                                 {"wire_bytes", f.wire_bytes},
                                 {"wire_per_row", f.wire_per_row},
                                 {"wire_gbps", f.wire_gbps}};
      };
      phase("dispatch", row.mori.phases.dispatch, w.dispatch_bytes);
      phase("combine", row.mori.phases.combine, w.combine_bytes);
      for (std::size_t i = 0; report.stats && i < w.traffic.size(); ++i) {
        const mori_ep::fabric::Traffic& t = w.traffic[i];
        result["traffic"].push_back({{"rank", i / static_cast<std::size_t>(c.world)},
                                     {"peer", i % static_cast<std::size_t>(c.world)},
                                     {"bytes", t.bytes},
                                     {"messages", t.messages},
                                     {"refusals", t.refusals},
                                     {"completions", t.completions},
                                     {"errors", t.errors},
                                     {"longest_wait_ns", t.longest_wait_ns}});
      }
    }
    if (report.devices) {
      auto& config = result["config"];
      config["devices"] = c.devices;
      config["graph"] = c.graph;
      config["l2"] = c.cold ? "cold" : "warm";
      config["blocks"] = row.mori.launch.block_num;
      config["warps"] = row.mori.launch.warp_per_block;
      auto const& floor = row.mori.floor_us;
      result["floor_us"] = percentile(floor, 50);
      result["floor"] = {{"p99_us", percentile(floor, 99)}, {"min_us", percentile(floor, 0)}, {"samples_us", floor}};
      for_each_phase(row.mori.phases, [&](const char* name, const Phase& p) {
        if (p.samples_us.empty()) return;
        result["phases"][name]["min_us"] = p.min_us();
        result["phases"][name]["over_floor_us"] = p.p50_us() - percentile(floor, 50);
        if (!report.ceilings->links.measured()) return;
        LinkFigures const f(row, name, p, report.ceilings->links);
        result["phases"][name]["link"] = {
            {"bytes", f.bytes}, {"gbps", f.gbps}, {"push_ratio", f.push}, {"pull_ratio", f.pull}};
      });
    }
    if (row.mpi) {
      result["mpi"] = {{"check", row.mpi->check}, {"phases", phases_json(row.mpi->phases, ceiling, mix)}};
      auto const over = [](const Phase& a, const Phase& b) { return ratio(a.p50_us(), b.p50_us()); };
      result["mori_over_mpi"] = {{"dispatch", over(row.mori.phases.dispatch, row.mpi->phases.dispatch)},
                                 {"combine", over(row.mori.phases.combine, row.mpi->phases.combine)},
                                 {"pair", over(row.mori.phases.pair, row.mpi->phases.pair)}};
    }
    if (report.per_rank) {
      Json ranks = Json::array();
      for (std::size_t r = 0; r < row.mori.phases.pair.rank_p50_us.size(); ++r) {
        Json rank = {{"rank", r}, {"tokens", c.tokens}, {"rows_received", row.rows_received[r]}};
        for_each_phase(row.mori.phases, [&](const char* name, const Phase& p) {
          rank[name + std::string("_p50_us")] = p.rank_p50_us[r];
        });
        ranks.push_back(rank);
      }
      result["ranks"] = ranks;
    }
    results.push_back(result);
  }
  Json document = {{"machine",
                    {{"cpu", m.cpu},
                     {"cores", m.cores},
                     {"memory_bytes", m.memory_bytes},
                     {"kernel", m.kernel},
                     {"load_average", m.load_average}}},
                   {"build",
                    {{"version", version()},
                     {"compiler", compiler()},
                     {"type", EP_BENCH_BUILD_TYPE},
                     {"flags", EP_BENCH_CXX_FLAGS},
                     {"sanitizer", EP_BENCH_SANITIZE}}},
                   {"flags", report.flags},
                   {"seed", report.seed},
                   {"ceiling",
                    {{report.devices ? "devices" : "threads", report.ceilings->copiers},
                     {report.devices ? "bytes_per_device" : "bytes_per_thread", report.ceilings->bytes_each},
                     {"gbps", ceiling},
                     {"samples_gbps", report.ceilings->memcpy_gbps}}},
                   {"ceilings",
                    {{"memcpy_gbps", ceiling},
                     {"read1_write5_gbps", report.ceilings->read1_write5()},
                     {"read5_write1_gbps", report.ceilings->read5_write1()}}}};
  if (report.devices) {
    document["ceilings"]["read1_write5_resident_gbps"] = Ceilings::resident(report.ceilings->read1_write5_tried);
    document["ceilings"]["read5_write1_resident_gbps"] = Ceilings::resident(report.ceilings->read5_write1_tried);
    document["ceilings"]["read1_write5_how"] = report.ceilings->read1_write5_how;
    document["ceilings"]["read5_write1_how"] = report.ceilings->read5_write1_how;
    auto const list = [&](const char* name, const Ceilings::Tried& tried) {
      for (auto const& v : tried)
        document["ceilings"][name].push_back({{"how", v.how}, {"resident", v.resident}, {"gbps", v.gbps}});
    };
    list("read1_write5_tried", report.ceilings->read1_write5_tried);
    list("read5_write1_tried", report.ceilings->read5_write1_tried);
    if (Links const& links = report.ceilings->links; links.measured()) {
      document["ceilings"]["link_copy_gbps"] = links.copy();
      document["ceilings"]["link_push_gbps"] = links.push();
      document["ceilings"]["link_pull_gbps"] = links.pull();
      document["ceilings"]["link_push_how"] = links.push_how;
      document["ceilings"]["link_pull_how"] = links.pull_how;
      list("link_push_tried", links.push_tried);
      list("link_pull_tried", links.pull_tried);
    }
  }
  if (auto const& d = report.devices)
    document["devices"] = {{"name", d->name},
                           {"used", d->used},
                           {"visible", d->visible},
                           {"driver", d->driver},
                           {"runtime", d->runtime},
                           {"multiprocessors", d->units},
                           {"l2_bytes", d->cache_bytes},
                           {"memory_bytes", d->memory_bytes}};
  if (!report.mpi.empty()) document["mpi"] = report.mpi;
  document["results"] = results;
  out << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace

void print(std::ostream& out, const Report& report, Format format) {
  switch (format) {
    case Format::table:
      return print_table(out, report);
    case Format::csv:
      return print_csv(out, report);
    case Format::json:
      return print_json(out, report);
  }
}

std::string version() {
  return std::to_string(MORI_EP_VERSION_MAJOR) + "." + std::to_string(MORI_EP_VERSION_MINOR) + "." +
         std::to_string(MORI_EP_VERSION_PATCH);
}

std::string unfit_build() {
  if (*EP_BENCH_SANITIZE != '\0') return "built with a sanitizer: timings say nothing";
#if !defined(__OPTIMIZE__)
  return "built without optimisation: timings say nothing. Use -DCMAKE_BUILD_TYPE=RelWithDebInfo";
#else
  return "";
#endif
}

}  // namespace ep_bench
