// SPDX-License-Identifier: MIT
//! @file What the doctor looks at. Every check says what it found and, unless all is well, what to do about it; what
//!       comes from files is read below `root`, which is "" for this machine.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpu/survey.hpp"
#include "mori_ep/env.hpp"

namespace ep_bench::doctor_checks {

enum class Verdict : std::uint8_t {
  pass,
  warn,  //!< ranks run, but slowly, or not in every way
  fail   //!< ranks do not run
};

[[nodiscard]] const char* name(Verdict verdict);

struct Check {
  std::string name;
  Verdict verdict = Verdict::pass;
  std::string found;
  std::string cure;  //!< empty with pass
};

//! @brief 1610612736 as "1.5 GiB".
[[nodiscard]] std::string size_text(std::int64_t bytes);

// The environment.

using Lookup = std::function<const char*(const char* name)>;

struct VariableRow {
  const mori_ep::EnvironmentVariable* variable;
  std::string value;  //!< in force; of a variable that is refused, what it says
  bool set = false, refused = false;
};
struct Variables {
  mori_ep::Environment environment;  //!< refused variables have their defaults
  std::vector<VariableRow> rows;
  std::vector<Check> checks;
};
//! @param entries as in POSIX's environ, for names that the table does not have
[[nodiscard]] Variables read_variables(const Lookup& lookup, const char* const* entries);

// What files say.

//! @brief Threads that `world` ranks on the host start in one process.
[[nodiscard]] std::int64_t threads_needed(int world, int cores);
//! @param cores that this process may run on
[[nodiscard]] Check check_cores(const std::string& root, int world, int cores);
//! @param heap of each rank; none: not asked
//! @param limit MORI_SHMEM_HEAP_SIZE
[[nodiscard]] Check check_memory(const std::string& root, int world, std::optional<std::int64_t> heap,
                                 std::optional<std::int64_t> limit);
//! @brief MORI_SHMEM_HEAP_SIZE against the heap that is asked for.
[[nodiscard]] Check check_heap_limit(std::optional<std::int64_t> heap, std::optional<std::int64_t> limit);
//! @brief The control group's limit on processes and threads.
[[nodiscard]] Check check_process_count(const std::string& root, std::int64_t needed);
[[nodiscard]] std::vector<std::string> rdma_devices(const std::string& root);
[[nodiscard]] std::vector<Check> check_rdma(const std::string& root, const mori_ep::Environment& environment);

// What the system grants.

struct ResourceLimit {
  static constexpr std::uint64_t kNone = UINT64_MAX;
  std::uint64_t soft = kNone, hard = kNone;
};
[[nodiscard]] ResourceLimit resource_limit(int resource);  //!< RLIMIT_...
[[nodiscard]] Check check_open_files(ResourceLimit limit, int world);
[[nodiscard]] Check check_threads(ResourceLimit limit, std::int64_t needed, bool exempt);
[[nodiscard]] Check check_locked_memory(ResourceLimit limit, bool rdma);
//! @brief The heap of a rank that is a process is a file in memory, which may not be larger than files may.
[[nodiscard]] Check check_file_size(ResourceLimit limit, std::optional<std::int64_t> heap);
//! @brief Every process maps the heaps of all ranks, and has threads.
[[nodiscard]] Check check_address_space(ResourceLimit limit, int world, std::int64_t threads,
                                        std::optional<std::int64_t> heap);

struct Interface {
  std::string name;
  bool up = false, loopback = false, has_address = false;
};
[[nodiscard]] std::vector<Interface> interfaces();
[[nodiscard]] Check check_interfaces(const std::vector<Interface>& all, const mori_ep::NameFilter& filter);

// What is tried.

[[nodiscard]] Check check_memfd();
[[nodiscard]] Check check_shared_folder(const std::string& folder, int world);
[[nodiscard]] Check check_unix_sockets();
[[nodiscard]] Check check_loopback();
[[nodiscard]] Check check_atomics();

// GPUs.

[[nodiscard]] std::vector<Check> check_gpus(const std::string& root, const GpuSurvey& survey, int world,
                                            const Lookup& lookup);

}  // namespace ep_bench::doctor_checks
