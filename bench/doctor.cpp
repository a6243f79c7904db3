// SPDX-License-Identifier: MIT
#include "doctor.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "doctor/checks.hpp"
#include "problem.hpp"

namespace ep_bench {
namespace {

using doctor_checks::Check;
using doctor_checks::VariableRow;
using doctor_checks::Verdict;
using Json = nlohmann::ordered_json;

//! The size as mori_ep reads MORI_SHMEM_HEAP_SIZE, with errors that speak of the option.
std::optional<std::int64_t> heap_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  mori_ep::Environment environment;
  for (auto const& variable : mori_ep::kEnvironmentTable)
    if (variable.name == std::string("MORI_SHMEM_HEAP_SIZE"))
      if (auto const status = environment.take(variable, text.c_str()); !status.ok())
        throw UsageError("--heap is \"" + text + "\". " + status.error().hint);
  return environment.heap_bytes;
}

std::vector<Check> check_machine(const DoctorOptions& options, const mori_ep::Environment& environment,
                                 const doctor_checks::Lookup& lookup) {
  using namespace doctor_checks;
  std::string const root;
  int const cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  auto const threads = threads_needed(options.world, cores);
  auto const heap = heap_of(options.heap);
  bool const rdma = !rdma_devices(root).empty();
  std::vector<Check> checks = {
      check_cores(root, options.world, cores),
      check_atomics(),
      check_memory(root, options.world, heap, environment.heap_bytes),
      check_heap_limit(heap, environment.heap_bytes),
      check_memfd(),
      check_shared_folder("/dev/shm", options.world),
      check_file_size(resource_limit(RLIMIT_FSIZE), heap),
      check_address_space(resource_limit(RLIMIT_AS), options.world, threads, heap),
      check_locked_memory(resource_limit(RLIMIT_MEMLOCK), rdma),
      check_open_files(resource_limit(RLIMIT_NOFILE), options.world),
      check_threads(resource_limit(RLIMIT_NPROC), threads, ::geteuid() == 0),
      check_process_count(root, threads),
      check_unix_sockets(),
      check_loopback(),
      check_interfaces(interfaces(), environment.socket_interfaces),
  };
  for (auto const& more : {check_gpus(root, survey_gpus(), options.world, lookup), check_rdma(root, environment)})
    checks.insert(checks.end(), more.begin(), more.end());
  return checks;
}

std::string standing(const VariableRow& row) { return row.refused ? "refused" : name(row.variable->standing); }

void print_table(const std::vector<VariableRow>& rows, const std::vector<Check>& checks) {
  std::vector<std::vector<std::string>> table = {{"variable", "value", "default", "standing", "where", "effect"}};
  for (auto const& row : rows) {
    auto const& v = *row.variable;
    table.push_back({v.name, row.value, v.default_text, standing(row), v.where, v.effect});
  }
  std::vector<std::size_t> widths(table.front().size());
  for (auto const& row : table)
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (auto const& row : table) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      std::cout << row[i] << std::string(widths[i] - row[i].size() + 2, ' ');
    std::cout << row.back() << '\n';
  }
  std::cout << '\n';
  std::size_t width = 0;
  for (auto const& check : checks) width = std::max(width, check.name.size());
  for (auto const& check : checks) {
    std::cout << name(check.verdict) << "  " << check.name << std::string(width - check.name.size() + 2, ' ')
              << check.found << '\n';
    if (!check.cure.empty()) std::cout << std::string(width + 8, ' ') << "-> " << check.cure << '\n';
  }
}

void print_json(const std::vector<VariableRow>& rows, const std::vector<Check>& checks, bool healthy) {
  Json variables = Json::array(), results = Json::array();
  for (auto const& row : rows) {
    auto const& v = *row.variable;
    variables.push_back({{"name", v.name},
                         {"type", name(v.type)},
                         {"value", row.value},
                         {"default", v.default_text},
                         {"set", row.set},
                         {"standing", standing(row)},
                         {"where", v.where},
                         {"effect", v.effect}});
  }
  for (auto const& check : checks)
    results.push_back(
        {{"name", check.name}, {"verdict", name(check.verdict)}, {"found", check.found}, {"cure", check.cure}});
  Json const all = {{"environment", variables}, {"checks", results}, {"ok", healthy}};
  // A variable may hold bytes that are no UTF-8.
  std::cout << all.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

}  // namespace

int doctor(const DoctorOptions& options) {
  doctor_checks::Lookup const lookup = [](const char* variable) -> const char* { return std::getenv(variable); };
  auto const variables = doctor_checks::read_variables(lookup, ::environ);
  auto checks = variables.checks;
  auto const machine = check_machine(options, variables.environment, lookup);
  checks.insert(checks.end(), machine.begin(), machine.end());
  auto const count = [&](Verdict verdict) {
    return std::count_if(checks.begin(), checks.end(), [&](const Check& c) { return c.verdict == verdict; });
  };
  bool const healthy = count(Verdict::fail) == 0;
  if (options.json) {
    print_json(variables.rows, checks, healthy);
  } else {
    print_table(variables.rows, checks);
    std::cout << '\n'
              << count(Verdict::pass) << " passed, " << count(Verdict::warn) << " warned, " << count(Verdict::fail)
              << " failed\n";
  }
  return healthy ? 0 : 1;
}

}  // namespace ep_bench
