// SPDX-License-Identifier: MIT
//! @file What the run ran on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <thread>

#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

namespace ep_bench {

//! @brief The value behind the first line of `path` that starts with `key`; empty when there is none.
inline std::string value_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key, 0) == 0) {
      auto const at = line.find_first_not_of(" \t:", key.size());
      return at == std::string::npos ? "" : line.substr(at);
    }
  return "";
}

struct Machine {
  std::string cpu;
  int cores = 1;
  std::int64_t memory_bytes = 0;
  std::string kernel;
  double load_average = 0;  //!< of the last minute, at the start

  static Machine here() {
    Machine m;
    m.cpu = value_in("/proc/cpuinfo", "model name");
    m.cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    m.memory_bytes = static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
    utsname name{};
    if (::uname(&name) == 0) m.kernel = std::string(name.sysname) + " " + name.release + " " + name.machine;
    std::ifstream("/proc/loadavg") >> m.load_average;
    return m;
  }
};

//! @brief 1610612736 as "1610612736 bytes (1.5 GiB)".
inline std::string bytes_text(std::int64_t bytes) {
  char text[64];
  auto const size = static_cast<double>(bytes);
  bool const large = bytes >= std::int64_t{1} << 30;
  std::snprintf(text, sizeof(text), "%lld bytes (%.1f %s)", static_cast<long long>(bytes),
                size / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB");
  return text;
}

//! @brief The limit in force of RLIMIT_...; none: no limit.
inline std::optional<std::int64_t> limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    return std::nullopt;
  return static_cast<std::int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
}

//! @brief Bytes that this process may still map; none: no limit.
inline std::optional<std::int64_t> address_space_left() {
  auto const limit = limit_of(RLIMIT_AS);
  if (!limit) return std::nullopt;
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return std::max<std::int64_t>(0, *limit - pages * ::sysconf(_SC_PAGESIZE));
}

//! @brief Bytes that can be had without swapping: the machine's, or what is left of the container's limit.
inline std::int64_t available_bytes() {
  std::int64_t available = std::numeric_limits<std::int64_t>::max();
  if (auto const kib = value_in("/proc/meminfo", "MemAvailable"); !kib.empty()) available = std::stoll(kib) * 1024;
  std::int64_t limit = 0, used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit && std::ifstream("/sys/fs/cgroup/memory.current") >> used)
    available = std::min(available, std::max<std::int64_t>(0, limit - used));
  return available;
}

}  // namespace ep_bench
