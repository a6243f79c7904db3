// SPDX-License-Identifier: MIT
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "doctor/checks.hpp"
#include "support/catch.hpp"

namespace ep_bench::doctor_checks {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kGiB = std::int64_t{1} << 30;

//! A folder that stands for another machine's root, gone at the end.
class Root {
 public:
  Root() {
    std::string pattern = (fs::temp_directory_path() / "mori_ep_doctor_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no folder for the test: " + pattern);
    path_ = pattern;
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;
  ~Root() { fs::remove_all(path_); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories(fs::path(path_ + file).parent_path());
    std::ofstream(path_ + file) << text << '\n';
  }
  void add_port(const std::string& device, const std::string& state,
                const std::map<std::string, std::string>& gids) const {
    std::string const port = "/sys/class/infiniband/" + device + "/ports/1";
    write(port + "/state", state);
    write(port + "/link_layer", "Ethernet");
    for (auto const& [index, gid] : gids) {
      write(port + "/gids/" + index, gid);
      write(port + "/gid_attrs/types/" + index, "RoCE v2");
    }
  }
  operator const std::string&() const { return path_; }  // NOLINT: wanted wherever a root is

 private:
  std::string path_;
};

Lookup lookup_in(const std::map<std::string, std::string>& variables) {
  return [&](const char* name) -> const char* {
    auto const found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}
mori_ep::Environment environment_of(const std::map<std::string, std::string>& variables) {
  auto const read = read_variables(lookup_in(variables), nullptr);
  for (auto const& check : read.checks) REQUIRE(check.verdict != Verdict::fail);
  return read.environment;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

//! The verdict is as expected, found and cure have these parts, and there is a cure unless all is well.
void require(const Check& check, Verdict verdict, const std::string& found, const std::string& cure = "") {
  INFO(name(check.verdict) << " " << check.name << ": " << check.found << " -> " << check.cure);
  REQUIRE(check.verdict == verdict);
  REQUIRE(says(check.found, found));
  REQUIRE(says(check.cure, cure));
  REQUIRE(check.cure.empty() == (verdict == Verdict::pass));
}

constexpr const char* kGid = "fe80:0000:0000:0000:0a00:27ff:fe4e:66a1";
constexpr const char* kNoGid = "0000:0000:0000:0000:0000:0000:0000:0000";

}  // namespace

TEST_CASE("variables: what is refused, what does nothing yet, what is unknown") {
  std::map<std::string, std::string> const none,
      wrong = {
          {"MORI_SHMEM_HEAP_SIZE", "4 G"}, {"MORI_RDMA_SL", "16"}, {"MORI_NUM_QP_PER_PE", "8"}, {"MASTER_PORT", "x"}};
  const char* const known[] = {"MORI_RDMA_SL=16", "MASTER_PORT=x", nullptr};
  const char* const unknown[] = {"MORI_RDMA_SLL=1", "MORI_WHOLLY_ELSEWHERE=1", nullptr};
  auto read = read_variables(lookup_in(none), known);
  REQUIRE(read.checks.size() == 1);
  require(read.checks[0], Verdict::pass, "every default");
  REQUIRE(read.rows.size() == std::size(mori_ep::kEnvironmentTable));

  read = read_variables(lookup_in(wrong), known);
  std::vector<Check> failed, warned;
  for (auto const& check : read.checks) (check.verdict == Verdict::fail ? failed : warned).push_back(check);
  REQUIRE(failed.size() == 2);
  require(failed[0], Verdict::fail, "MORI_SHMEM_HEAP_SIZE is \"4 G\"", "Give a whole number of bytes");
  require(failed[1], Verdict::fail, "MORI_RDMA_SL is \"16\", limit 15", "0 to 15");
  REQUIRE((read.environment.queue_pairs_per_peer == 8 && !read.environment.rdma_service_level));
  for (auto const& row : read.rows) {
    std::string const name = row.variable->name;
    REQUIRE(row.set == (wrong.count(name) == 1));
    REQUIRE(row.refused == (name == "MORI_SHMEM_HEAP_SIZE" || name == "MORI_RDMA_SL"));
    if (row.refused) REQUIRE(row.value == wrong.at(name));
    // A variable that is set and understood is warned of exactly where it does nothing yet.
    bool told = false;
    for (auto const& check : warned) told = told || says(check.found, name + " is \"");
    REQUIRE(told == (row.set && !row.refused && row.variable->standing == mori_ep::EnvironmentStanding::planned));
  }

  read = read_variables(lookup_in(none), unknown);
  REQUIRE(read.checks.size() == 2);
  require(read.checks[0], Verdict::warn, "MORI_RDMA_SLL", "MORI_RDMA_SL is meant");
  require(read.checks[1], Verdict::warn, "MORI_WHOLLY_ELSEWHERE", "Unset");
}

TEST_CASE("cores: the machine's, or what a control group grants") {
  Root const root;
  require(check_cores(root, 8, 8), Verdict::pass, "8 cores, for 8 ranks");
  require(check_cores(root, 8, 2), Verdict::warn, "2 cores, for 8 ranks", "--world");
  root.write("/proc/self/cgroup", "0::/outer/inner");
  root.write("/sys/fs/cgroup/outer/inner/cpu.max", "max 100000");
  require(check_cores(root, 8, 8), Verdict::pass, "8 cores, for");
  root.write("/sys/fs/cgroup/outer/cpu.max", "150000 100000");
  require(check_cores(root, 8, 8), Verdict::warn, "grants 1.5", "limit of cores");
  require(check_cores(root, 1, 8), Verdict::pass, "for 1 rank");

  Root const first;
  first.write("/proc/self/cgroup", "4:memory:/box\n3:cpu,cpuacct:/box");
  first.write("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "400000");
  first.write("/sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000");
  require(check_cores(first, 8, 16), Verdict::warn, "grants 4.0", "--world");
  first.write("/sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "-1");
  require(check_cores(first, 8, 16), Verdict::pass, "16 cores, for");
}

TEST_CASE("memory: the machine's, or what is left of a control group's limit") {
  Root const root;
  require(check_memory(root, 8, {}, {}), Verdict::warn, "nothing of MemAvailable", "/proc");
  root.write("/proc/meminfo", "MemTotal:       33554432 kB\nMemAvailable:   16777216 kB");
  require(check_memory(root, 8, {}, {}), Verdict::pass, "16.0 GiB available");
  require(check_memory(root, 8, 2 * kGiB, {}), Verdict::pass, "8 ranks with a heap of 2.0 GiB each");
  require(check_memory(root, 8, 2 * kGiB + 1, {}), Verdict::fail, "16.0 GiB available", "at most 2.0 GiB");
  require(check_memory(root, 8, std::int64_t{1} << 60, {}), Verdict::fail, "1.0 EiB", "at most 2.0 GiB");
  require(check_memory(root, 8, {}, 3 * kGiB), Verdict::warn, "up to 3.0 GiB (MORI_SHMEM_HEAP_SIZE)",
          "at most 2.0 GiB");
  require(check_memory(root, 4, {}, 3 * kGiB), Verdict::pass, "up to 3.0 GiB");
  require(check_memory(root, 8, 1 * kGiB, 3 * kGiB), Verdict::pass, "a heap of 1.0 GiB");

  root.write("/proc/self/cgroup", "0::/box");
  root.write("/sys/fs/cgroup/box/memory.max", "max");
  root.write("/sys/fs/cgroup/box/memory.current", "1073741824");
  require(check_memory(root, 8, {}, {}), Verdict::pass, "16.0 GiB available");
  root.write("/sys/fs/cgroup/memory.max", "4294967296");
  root.write("/sys/fs/cgroup/memory.current", "3221225472");
  require(check_memory(root, 8, {}, {}), Verdict::pass, "1.0 GiB available");
  root.write("/sys/fs/cgroup/memory.stat", "anon 1073741824\ninactive_file 1073741824");
  require(check_memory(root, 8, {}, {}), Verdict::pass, "2.0 GiB available");
  root.write("/proc/self/cgroup", "0::/../../elsewhere");
  require(check_memory(root, 8, {}, {}), Verdict::pass, "2.0 GiB available");

  Root const first;
  first.write("/proc/meminfo", "MemAvailable:   16777216 kB");
  first.write("/proc/self/cgroup", "4:memory:/only/the/host/sees/this");
  first.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648");
  first.write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "1073741824");
  require(check_memory(first, 1, {}, {}), Verdict::pass, "1.0 GiB available");
}

TEST_CASE("processes and threads") {
  REQUIRE(threads_needed(8, 2) == 24);
  REQUIRE(threads_needed(8, 64) == 80);
  Root const root;
  require(check_process_count(root, 24), Verdict::pass, "no control group");
  root.write("/proc/self/cgroup", "0::/box");
  root.write("/sys/fs/cgroup/box/pids.max", "max");
  require(check_process_count(root, 24), Verdict::pass, "no control group");
  root.write("/sys/fs/cgroup/box/pids.max", "100");
  root.write("/sys/fs/cgroup/box/pids.current", "76");
  require(check_process_count(root, 24), Verdict::pass, "76 of 100");
  require(check_process_count(root, 25), Verdict::fail, "25 are needed", "101 or more");
  require(check_threads({.soft = 23, .hard = 23}, 24, false), Verdict::fail, "23 processes", "nproc");
  require(check_threads({.soft = 23, .hard = 23}, 24, true), Verdict::pass, "root");
  require(check_threads({}, 24, false), Verdict::pass, "unlimited");
}

TEST_CASE("open files and locked memory") {
  require(check_open_files({.soft = 1024, .hard = 4096}, 8), Verdict::pass, "1024 (ulimit -n)");
  require(check_open_files({.soft = 1024, .hard = 1 << 20}, 64), Verdict::warn, "4160 for all", "ulimit -n 4160.");
  require(check_open_files({.soft = 1024, .hard = 1024}, 64), Verdict::warn, "192 for a rank", "hard limit of 1024");
  require(check_open_files({.soft = 64, .hard = 4096}, 8), Verdict::fail, "80 for a rank", "ulimit -n 128.");
  require(check_open_files({}, 8192), Verdict::pass, "unlimited");
  require(check_locked_memory({.soft = 65536, .hard = 65536}, false), Verdict::pass, "64.0 KiB");
  require(check_locked_memory({.soft = 65536, .hard = 65536}, true), Verdict::warn, "64.0 KiB", "ulimit -l unlimited");
  require(check_locked_memory({}, true), Verdict::pass, "unlimited");
  REQUIRE(resource_limit(RLIMIT_NOFILE).soft <= resource_limit(RLIMIT_NOFILE).hard);
}

TEST_CASE("what a heap needs of the limits") {
  require(check_heap_limit({}, {}), Verdict::pass, "none");
  require(check_heap_limit(2 * kGiB, {}), Verdict::pass, "none");
  require(check_heap_limit({}, kGiB), Verdict::pass, "1.0 GiB (MORI_SHMEM_HEAP_SIZE)");
  require(check_heap_limit(kGiB, kGiB), Verdict::pass, "asked for 1.0 GiB");
  require(check_heap_limit(kGiB + 1, kGiB), Verdict::fail, "asked for 1.0 GiB", "MORI_SHMEM_HEAP_SIZE=1073741825");

  constexpr std::uint64_t kSize = std::uint64_t{1} << 30;
  require(check_file_size({}, 64 * kGiB), Verdict::pass, "unlimited (ulimit -f)");
  require(check_file_size({.soft = kSize, .hard = kSize}, kGiB), Verdict::pass, "of 1.0 GiB");
  require(check_file_size({.soft = kSize}, 2 * kGiB), Verdict::fail, "of 2.0 GiB", "ulimit -f unlimited.");
  require(check_file_size({.soft = kSize, .hard = kSize}, 2 * kGiB), Verdict::fail, "1.0 GiB", "hard limit");
  require(check_file_size({.soft = kSize}, {}), Verdict::warn, "a file in memory", "SIGXFSZ");

  require(check_address_space({}, 8, 24, 64 * kGiB), Verdict::pass, "unlimited (ulimit -v)");
  require(check_address_space({.soft = 11 * kSize}, 8, 24, kGiB), Verdict::pass, "24 threads and the heaps");
  require(check_address_space({.soft = 9 * kSize}, 8, 24, kGiB), Verdict::fail, "9.9 GiB for 24",
          "ulimit -v unlimited.");
  require(check_address_space({.soft = kSize, .hard = kSize}, 8, 24, kGiB), Verdict::fail, "1.0 GiB", "hard limit");
  require(check_address_space({.soft = 9 * kSize}, 8, 24, {}), Verdict::warn, "24 threads, to which", "ulimit -v");
  require(check_address_space({.soft = kSize}, 8192, 24, INT64_MAX), Verdict::fail, "8.0 EiB", "ulimit -v");
}

TEST_CASE("interfaces: those that are up, and those that MORI_SOCKET_IFNAME admits") {
  std::vector<Interface> const all = {{.name = "lo", .up = true, .loopback = true, .has_address = true},
                                      {.name = "eth0", .up = true, .has_address = true},
                                      {.name = "eth1", .has_address = true},
                                      {.name = "ib0", .up = true}};
  auto const check = [&](const std::string& list) {
    return check_interfaces(all, environment_of({{"MORI_SOCKET_IFNAME", list}}).socket_interfaces);
  };
  require(check(""), Verdict::pass, "up: eth0");
  require(check("eth"), Verdict::pass, "\"eth\": eth0");
  require(check("^eth"), Verdict::warn, "lo, which no other machine reaches", "several machines");
  require(check("=lo"), Verdict::warn, "\"=lo\": lo", "Ranks of this machine can meet");
  for (const char* list : {"=eth1", "ib", "wlan", "^lo,eth"})
    require(check(list), Verdict::fail, "there are lo, eth0, eth1, ib0", "ip -brief address");
  require(check_interfaces({all[0]}, {.list = {}, .prefixes = true}), Verdict::warn, "no interface but loopback", "up");
}

TEST_CASE("RDMA devices: ports, addresses, and what the variables leave of them") {
  Root const root;
  auto const check = [&](const std::map<std::string, std::string>& variables) {
    return check_rdma(root, environment_of(variables));
  };
  require(check({})[0], Verdict::pass, "no device");
  require(check({{"MORI_RDMA_DEVICES", "mlx5_0"}})[0], Verdict::warn, "has none", "unset");

  root.add_port("mlx5_0", "4: ACTIVE", {{"0", kNoGid}, {"3", kGid}, {"10", kGid}});
  root.add_port("mlx5_1", "1: DOWN", {});
  root.add_port("mlx5_2", "4: ACTIVE", {{"0", kNoGid}});
  auto checks = check({});
  REQUIRE(checks.size() == 4);
  REQUIRE(checks[0].name == "rdma mlx5_0");
  require(checks[0], Verdict::pass,
          std::string("port 1 ACTIVE, Ethernet, GIDs 3 ") + kGid + " (RoCE v2), 10 " + kGid + " (RoCE v2)");
  require(checks[1], Verdict::warn, "port 1 DOWN, Ethernet, no GID", "MORI_RDMA_DEVICES=^mlx5_1");
  require(checks[2], Verdict::warn, "ACTIVE, Ethernet, no GID", "an address");
  require(checks[3], Verdict::pass, "atomics /sys does not tell");

  checks = check({{"MORI_RDMA_DEVICES", "mlx5_0"}, {"MORI_IB_GID_INDEX", "2"}});
  require(checks[0], Verdict::warn, "GIDs 3", "MORI_IB_GID_INDEX is 2");
  require(checks[1], Verdict::pass, "left out by MORI_RDMA_DEVICES");
  require(check({{"MORI_IB_GID_INDEX", "10"}})[0], Verdict::pass, "10 fe80");
  require(check({{"MORI_RDMA_DEVICES", "mlx5"}})[3], Verdict::warn, "has mlx5_0, mlx5_1, mlx5_2", "Name devices");
}

TEST_CASE("GPUs: presence, peers, queues") {
  Root const root;
  std::map<std::string, std::string> const unset,
      set = {{"CUDA_DEVICE_MAX_CONNECTIONS", "32"}, {"CUDA_MODULE_LOADING", "EAGER"}};
  auto const check = [&](const GpuSurvey& survey, int world = 1) {
    return check_gpus(root, survey, world, lookup_in(unset));
  };
  GpuSurvey survey;
  require(check(survey)[0], Verdict::pass, "not built for GPUs, and there is no GPU driver");
  root.write("/dev/kfd", "");
  require(check(survey)[0], Verdict::warn, "/dev/kfd", "mori_ep::hip");
  root.write("/dev/nvidiactl", "");
  require(check(survey)[0], Verdict::warn, "/dev/nvidiactl", "-DMORI_EP_GPU=cuda");
  survey.built_for = "cuda";
  require(check(survey)[0], Verdict::warn, "none is visible", "CUDA_VISIBLE_DEVICES");
  survey.trouble = "no CUDA-capable device is detected";
  require(check(survey)[0], Verdict::warn, survey.trouble, "GPU");

  GpuSurvey::Device const large{"H", 140 * kGiB, {true, true, true}};
  survey = {.built_for = "cuda", .trouble = "", .devices = {large, large, {"A", 80 * kGiB, {true, true, true}}}};
  auto checks = check(survey, 3);
  REQUIRE(checks.size() == 2);
  require(checks[0], Verdict::pass, "0-1 H, 140.0 GiB each; 2 A, 80.0 GiB");
  require(checks[1], Verdict::pass, "reaches every other's");
  survey.devices[2].reaches = {true, false, true};
  checks = check(survey, 4);
  REQUIRE(checks.size() == 3);
  require(checks[1], Verdict::warn, "no peer access: 2->1", "--devices");
  require(checks[2], Verdict::warn, "4 ranks share 3 devices; CUDA_DEVICE_MAX_CONNECTIONS is not set", "EAGER");
  require(check_gpus(root, survey, 4, lookup_in(set))[2], Verdict::pass, "CUDA_MODULE_LOADING \"EAGER\"");
}

TEST_CASE("what is tried works on a machine that runs the tests, and its refusals say what to do") {
  require(check_memfd(), Verdict::pass, "mapped");
  require(check_unix_sockets(), Verdict::pass, "descriptors");
  require(check_loopback(), Verdict::pass, "127.0.0.1");
  require(check_atomics(), Verdict::pass, "lock-free");
  require(check_shared_folder("/nowhere/at/all", 8), Verdict::warn, "No such file", "64.0 MiB or more");
  bool loopback = false;
  for (auto const& i : interfaces()) loopback = loopback || (i.loopback && i.up && i.has_address);
  REQUIRE(loopback);

  // Out of descriptors: each must say which call was refused. Nothing else may want one meanwhile, REQUIRE neither.
  auto const limit = resource_limit(RLIMIT_NOFILE);
  rlimit const nothing{.rlim_cur = 0, .rlim_max = limit.hard}, before{.rlim_cur = limit.soft, .rlim_max = limit.hard};
  int const lowered = ::setrlimit(RLIMIT_NOFILE, &nothing);
  auto const memfd = check_memfd(), sockets = check_unix_sockets(), tcp = check_loopback();
  int const restored = ::setrlimit(RLIMIT_NOFILE, &before);
  REQUIRE((lowered == 0 && restored == 0));
  require(memfd, Verdict::fail, "memfd_create: Too many open files", "seccomp");
  require(sockets, Verdict::fail, "socket: Too many open files", "AF_UNIX");
  require(tcp, Verdict::fail, "socket: Too many open files", "ip link set lo up");
}

TEST_CASE("sizes in units of 1024") {
  REQUIRE(size_text(0) == "0 B");
  REQUIRE(size_text(1023) == "1023 B");
  REQUIRE(size_text(1536) == "1.5 KiB");
  REQUIRE(size_text(INT64_MAX) == "8.0 EiB");
}

}  // namespace ep_bench::doctor_checks
