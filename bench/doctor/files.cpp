// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "doctor/checks.hpp"
#include "machine.hpp"

namespace ep_bench::doctor_checks {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

//! A number at the start of a file; none where there is no file, or a word such as "max".
std::optional<std::int64_t> number_in(const fs::path& path) {
  std::int64_t number = 0;
  if (std::ifstream file(path); file >> number) return number;
  return std::nullopt;
}

//! The control groups that hold this process, from its own outwards: each may limit it. Version 2 has one tree, version
//! 1 one for each controller. In a container the path may name a folder that only the host sees; then the root is all
//! there is to read.
std::vector<fs::path> control_groups(const std::string& root, const std::string& controller) {
  fs::path const base = fs::path(root + "/sys/fs/cgroup");
  std::vector<fs::path> folders;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    auto const first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string const controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    bool const version_2 = controllers == ",,";
    if (!version_2 && controllers.find("," + controller + ",") == std::string::npos) continue;
    fs::path const top = version_2 ? base : base / controller;
    std::string path = line.substr(second + 1);
    if (path.find("..") != std::string::npos) path.clear();
    std::error_code error;
    for (auto at = path.size(); at != std::string::npos && at > 0; at = path.rfind('/', at - 1))
      if (auto const folder = top.string() + path.substr(0, at); at > 1 && fs::is_directory(folder, error))
        folders.emplace_back(folder);
    folders.push_back(top);
  }
  return folders;
}

//! Bytes that can be had without swapping: the machine's, or what is left of a control group's limit, where file pages
//! that can be dropped are not counted as used.
std::optional<std::int64_t> available_memory(const std::string& root) {
  std::int64_t available = kMax;
  if (auto const kib = value_in((root + "/proc/meminfo").c_str(), "MemAvailable"); !kib.empty())
    available = std::atoll(kib.c_str()) * 1024;
  for (auto const& folder : control_groups(root, "memory"))
    for (auto const& [limit_file, used_file, droppable] :
         {std::tuple{"memory.max", "memory.current", "inactive_file"},
          std::tuple{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}}) {
      auto const limit = number_in(folder / limit_file), used = number_in(folder / used_file);
      if (!limit || !used) continue;
      auto const dropped = std::atoll(value_in((folder / "memory.stat").c_str(), droppable).c_str());
      available = std::min(available, std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *used - dropped)));
    }
  return available == kMax ? std::nullopt : std::optional(available);
}

//! Cores' worth of time that control groups grant; none: no limit.
std::optional<double> core_quota(const std::string& root) {
  std::optional<double> least;
  auto const take = [&](double quota, double period) {
    if (quota > 0 && period > 0) least = std::min(least.value_or(quota / period), quota / period);
  };
  for (auto const& folder : control_groups(root, "cpu")) {
    double quota = 0, period = 0;
    if (std::ifstream file(folder / "cpu.max"); file >> quota >> period) take(quota, period);  // not of "max 100000"
    take(static_cast<double>(number_in(folder / "cpu.cfs_quota_us").value_or(-1)),
         static_cast<double>(number_in(folder / "cpu.cfs_period_us").value_or(0)));
  }
  return least;
}

std::vector<std::string> entries_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename().string());
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;  // 10 after 9
  });
  return names;
}

struct Gid {
  int index;
  std::string address, type;
};
std::vector<Gid> gids_of(const fs::path& port) {
  std::vector<Gid> gids;
  for (auto const& index : entries_of(port / "gids")) {
    auto const address = first_line(port / "gids" / index);
    if (address.find_first_not_of("0:") == std::string::npos) continue;
    auto const type = first_line(port / "gid_attrs" / "types" / index);
    gids.push_back({std::atoi(index.c_str()), address, type.empty() ? "type not told" : type});
  }
  return gids;
}

Check check_rdma_device(const std::string& root, const std::string& device, const mori_ep::Environment& environment) {
  Check check{.name = "rdma " + device, .verdict = Verdict::warn, .found = "", .cure = ""};
  fs::path const ports = root + "/sys/class/infiniband/" + device + "/ports";
  bool active = false, addressed = false, missing_gid = false;
  for (auto const& port : entries_of(ports)) {
    std::string state = first_line(ports / port / "state");
    state = state.substr(std::min(state.size(), state.find(' ') + 1));  // "4: ACTIVE"
    auto const gids = gids_of(ports / port);
    check.found += (check.found.empty() ? "port " : "; port ") + port + " " + state + ", " +
                   first_line(ports / port / "link_layer") + ", " + (gids.empty() ? "no GID" : "GIDs");
    constexpr std::size_t kShown = 8;
    for (std::size_t i = 0; i < std::min(gids.size(), kShown); ++i)
      check.found +=
          (i == 0 ? " " : ", ") + std::to_string(gids[i].index) + " " + gids[i].address + " (" + gids[i].type + ")";
    if (gids.size() > kShown) check.found += " and " + std::to_string(gids.size() - kShown) + " more";
    bool const up = state == "ACTIVE";
    active = active || up;
    addressed = addressed || (up && !gids.empty());
    if (up && environment.gid_index)
      missing_gid = missing_gid || std::none_of(gids.begin(), gids.end(),
                                                [&](const Gid& gid) { return gid.index == *environment.gid_index; });
  }
  if (check.found.empty()) check.found = "no port";
  if (!environment.rdma_devices.admits(device))
    return {check.name, Verdict::pass, check.found + "; left out by MORI_RDMA_DEVICES", ""};
  if (!active)
    check.cure =
        "Bring a port up (ip link set DEVICE up; ibstat shows why it is not), or leave the device out with "
        "MORI_RDMA_DEVICES=^" +
        device + ".";
  else if (!addressed)
    check.cure = "Give the active port's network interface an address: RoCE makes its GIDs from it.";
  else if (missing_gid)
    check.cure = "MORI_IB_GID_INDEX is " + std::to_string(*environment.gid_index) +
                 ", which an active port leaves empty: give an index that is listed here, or unset it.";
  else
    check.verdict = Verdict::pass;
  return check;
}

}  // namespace

std::string size_text(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto size = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(kUnits); ++unit) size /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", size, kUnits[unit]);
  return text;
}

std::int64_t threads_needed(int world, int cores) {
  return 2 * std::int64_t{world} + std::max(world, cores);  // the rank's own, its stream's, and the crews'
}

Check check_cores(const std::string& root, int world, int cores) {
  auto const quota = core_quota(root);
  double const usable = std::min<double>(cores, quota.value_or(cores));
  char granted[48] = "";
  if (quota) std::snprintf(granted, sizeof(granted), ", of which a control group grants %.1f", usable);
  Check check{"cores", Verdict::pass,
              std::to_string(cores) + (cores == 1 ? " core" : " cores") + granted + ", for " + std::to_string(world) +
                  (world == 1 ? " rank" : " ranks"),
              ""};
  if (usable < world) {
    check.verdict = Verdict::warn;
    check.cure =
        "Ranks on the host take turns: results are right, times say little. Run at most as many ranks as "
        "cores (--world), or raise the limit of cores.";
  }
  return check;
}

Check check_memory(const std::string& root, int world, std::optional<std::int64_t> heap,
                   std::optional<std::int64_t> limit) {
  auto const available = available_memory(root);
  if (!available)
    return {"memory", Verdict::warn, "/proc/meminfo says nothing of MemAvailable", "Mount /proc in this container."};
  Check check{"memory", Verdict::pass, size_text(*available) + " available", ""};
  auto const asked = heap ? heap : limit;
  if (!asked) return check;
  check.found += "; " + std::to_string(world) + (world == 1 ? " rank" : " ranks") +
                 (heap ? " with a heap of " + size_text(*asked) + " each"
                       : ", each a process with up to " + size_text(*asked) + " (MORI_SHMEM_HEAP_SIZE)");
  if (*asked <= *available / world) return check;
  // A limit is not a demand: heaps stop growing where the operators end.
  check.verdict = heap ? Verdict::fail : Verdict::warn;
  check.cure = "Give each rank at most " + size_text(*available / world) + ", run fewer ranks here, or free memory" +
               (heap ? "." : ": where heaps come to this limit, ranks are killed for memory.");
  return check;
}

Check check_heap_limit(std::optional<std::int64_t> heap, std::optional<std::int64_t> limit) {
  if (!limit) return {"heap limit", Verdict::pass, "none (MORI_SHMEM_HEAP_SIZE is not set)", ""};
  Check check{"heap limit", Verdict::pass,
              size_text(*limit) + " (MORI_SHMEM_HEAP_SIZE)" + (heap ? "; asked for " + size_text(*heap) : ""), ""};
  if (heap && *heap > *limit) {
    check.verdict = Verdict::fail;
    check.cure =
        "A heap of that size is refused: set MORI_SHMEM_HEAP_SIZE=" + std::to_string(*heap) + " or more, or unset it.";
  }
  return check;
}

Check check_process_count(const std::string& root, std::int64_t needed) {
  std::optional<std::int64_t> least, most, now;
  for (auto const& folder : control_groups(root, "pids")) {
    auto const limit = number_in(folder / "pids.max");
    if (!limit) continue;
    auto const used = number_in(folder / "pids.current").value_or(0);
    if (least && *least <= *limit - used) continue;
    least = *limit - used;
    most = limit;
    now = used;
  }
  if (!least) return {"pids.max", Verdict::pass, "no control group limits processes and threads", ""};
  Check check{"pids.max", Verdict::pass,
              std::to_string(*now) + " of " + std::to_string(*most) + " processes and threads are taken, " +
                  std::to_string(needed) + " are needed",
              ""};
  if (*least < needed) {
    check.verdict = Verdict::fail;
    check.cure = "Raise the container's limit (docker run --pids-limit, systemd TasksMax) to " +
                 std::to_string(*now + needed) + " or more, or run fewer ranks.";
  }
  return check;
}

std::vector<std::string> rdma_devices(const std::string& root) { return entries_of(root + "/sys/class/infiniband"); }

std::vector<Check> check_rdma(const std::string& root, const mori_ep::Environment& environment) {
  auto const devices = rdma_devices(root);
  auto const& filter = environment.rdma_devices;
  if (devices.empty() && !filter.is_set())
    return {{"rdma", Verdict::pass, "no device below /sys/class/infiniband: ranks reach each other by memory", ""}};
  std::vector<Check> checks;
  std::string listed;
  for (auto const& device : devices) {
    checks.push_back(check_rdma_device(root, device, environment));
    listed += (listed.empty() ? "" : ", ") + device;
  }
  if (std::none_of(devices.begin(), devices.end(), [&](const std::string& device) { return filter.admits(device); }))
    checks.push_back({"rdma", Verdict::warn,
                      "MORI_RDMA_DEVICES is \"" + std::string(filter.list.view()) +
                          "\", which leaves no device; /sys/class/infiniband has " + (listed.empty() ? "none" : listed),
                      "Name devices that are there, or unset it."});
  else
    checks.push_back({"rdma", Verdict::pass,
                      "whether devices do atomics /sys does not tell: ibv_devinfo -v prints it as atomic_cap", ""});
  return checks;
}

}  // namespace ep_bench::doctor_checks
