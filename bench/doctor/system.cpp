// SPDX-License-Identifier: MIT
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "doctor/checks.hpp"
#include "mori_ep/comm/passed_fd.hpp"

namespace ep_bench::doctor_checks {
namespace {

using mori_ep::comm::Fd;

//! What went wrong, in the words of errno.
std::string refusal(const char* call) { return std::string(call) + ": " + std::strerror(errno); }

//! A file in memory with one word written through a mapping; `trouble` says why there is none.
Fd file_in_memory(std::string& trouble) {
  Fd file(::memfd_create("mori_ep-doctor", MFD_CLOEXEC));
  if (!file.open()) {
    trouble = refusal("memfd_create");
    return file;
  }
  auto const bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    trouble = refusal("ftruncate of a memfd");
    return file;
  }
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) {
    trouble = refusal("mmap of a memfd");
    return file;
  }
  *static_cast<volatile std::uint32_t*>(memory) = 0x6d6f7269;
  ::munmap(memory, bytes);
  std::uint32_t word = 0;
  if (::pread(file.get(), &word, sizeof(word), 0) != sizeof(word) || word != 0x6d6f7269)
    trouble = "a memfd does not hold what its mapping was given";
  return file;
}

void set_deadline(int socket) {
  timeval const two_seconds{.tv_sec = 2, .tv_usec = 0};  // a firewall may drop what it does not let through
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &two_seconds, sizeof(two_seconds));
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &two_seconds, sizeof(two_seconds));
}

//! Listens at `address`, connects to it, and gives both ends to `talk`.
//! @return why that does not work; empty when it does
template <class Address, class Talk>
std::string meet(Address address, socklen_t length, Talk&& talk) {
  int const family = reinterpret_cast<const sockaddr&>(address).sa_family;
  Fd const listener(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.open()) return refusal("socket");
  set_deadline(listener.get());
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, length) != 0) return refusal("bind");
  if (::listen(listener.get(), 1) != 0) return refusal("listen");
  length = sizeof(address);
  if (::getsockname(listener.get(), generic, &length) != 0) return refusal("getsockname");
  Fd const near(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!near.open()) return refusal("socket");
  set_deadline(near.get());
  if (::connect(near.get(), generic, length) != 0) return refusal("connect");
  Fd const far(::accept(listener.get(), nullptr, nullptr));
  if (!far.open()) return refusal("accept");
  set_deadline(far.get());
  return talk(near, far);
}

//! Sends a descriptor from one end to the other, as ranks of several processes share memory.
std::string pass_descriptor(const Fd& near, const Fd& far) {
  std::string trouble;
  Fd const file = file_in_memory(trouble);
  if (!trouble.empty()) return trouble;
  if (!mori_ep::comm::send_fd(near, file)) return refusal("sendmsg of a descriptor");
  Fd arrived;
  if (mori_ep::comm::take_fd(far, arrived) != mori_ep::comm::TakenFd::taken) return "a descriptor did not arrive";
  std::uint32_t word = 0;
  if (::pread(arrived.get(), &word, sizeof(word), 0) != sizeof(word)) return "the descriptor that arrived is no file";
  return "";
}

std::string pass_byte(const Fd& near, const Fd& far) {
  char byte = 'm';
  if (::send(near.get(), &byte, 1, MSG_NOSIGNAL) != 1) return refusal("send");
  byte = 0;
  if (::recv(far.get(), &byte, 1, 0) != 1) return refusal("recv");
  return byte == 'm' ? "" : "another byte arrived than was sent";
}

std::string limit_text(std::uint64_t limit) {
  return limit == ResourceLimit::kNone ? "unlimited" : std::to_string(limit);
}

std::string size_of(ResourceLimit limit) {
  if (limit.soft == ResourceLimit::kNone) return "unlimited";
  return size_text(static_cast<std::int64_t>(std::min<std::uint64_t>(limit.soft, INT64_MAX)));
}

//! The end of a cure by ulimit: where the hard limit is too low, too, who can raise it.
std::string raised_by(ResourceLimit limit, std::uint64_t needed, const std::string& name) {
  if (limit.hard >= needed) return ".";
  return ", for which the hard limit must be raised (" + name + " in /etc/security/limits.conf).";
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (auto const& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "none" : text;
}

}  // namespace

ResourceLimit resource_limit(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return {};
  auto const number = [](rlim_t l) { return l == RLIM_INFINITY ? ResourceLimit::kNone : std::uint64_t{l}; };
  return {number(limit.rlim_cur), number(limit.rlim_max)};
}

Check check_open_files(ResourceLimit limit, int world) {
  // A process for each rank: a socket and a heap of each peer. Ranks as threads of one process: that, of all of them.
  constexpr std::uint64_t kOwn = 64;
  auto const ranks = static_cast<std::uint64_t>(world);
  std::uint64_t const one = 2 * ranks + kOwn, all = ranks * ranks + kOwn;
  Check check{"open files", Verdict::pass,
              limit_text(limit.soft) + " (ulimit -n); " + std::to_string(one) + " for a rank that is a process, " +
                  std::to_string(all) + " for all ranks in one",
              ""};
  std::uint64_t const needed = std::max(one, all);
  if (limit.soft >= needed) return check;
  check.verdict = limit.soft < one ? Verdict::fail : Verdict::warn;
  check.cure = "ulimit -n " + std::to_string(needed) +
               (limit.hard < needed ? ", which the hard limit of " + limit_text(limit.hard) +
                                          " must be raised for (/etc/security/limits.conf, docker run --ulimit nofile)."
                                    : ".");
  return check;
}

Check check_threads(ResourceLimit limit, std::int64_t needed, bool exempt) {
  Check check{
      "processes", Verdict::pass,
      limit_text(limit.soft) + " processes and threads a user (ulimit -u), " + std::to_string(needed) + " are needed",
      ""};
  if (exempt) {
    check.found += "; root is not held to it";
  } else if (limit.soft < static_cast<std::uint64_t>(needed)) {
    check.verdict = Verdict::fail;
    check.cure = "Raise it: ulimit -u, or nproc in /etc/security/limits.conf. All of a user's threads count.";
  }
  return check;
}

Check check_locked_memory(ResourceLimit limit, bool rdma) {
  bool const unlimited = limit.soft == ResourceLimit::kNone;
  Check check{"locked memory", Verdict::pass, size_of(limit) + " (ulimit -l)", ""};
  if (!rdma) {
    check.found += "; only RDMA devices need it, and there is none";
  } else if (!unlimited) {
    check.verdict = Verdict::warn;
    check.cure =
        "RDMA locks every heap in memory: ulimit -l unlimited (memlock in /etc/security/limits.conf, docker run "
        "--ulimit memlock=-1).";
  }
  return check;
}

Check check_file_size(ResourceLimit limit, std::optional<std::int64_t> heap) {
  Check check{"file size", Verdict::pass, size_of(limit) + " (ulimit -f)", ""};
  if (limit.soft == ResourceLimit::kNone) return check;
  check.found += "; the heap of a rank that is a process is a file in memory";
  if (heap) check.found += ", of " + size_text(*heap);
  if (heap && static_cast<std::uint64_t>(*heap) <= limit.soft) return check;
  check.verdict = heap ? Verdict::fail : Verdict::warn;
  check.cure = "A rank with a larger heap is killed (SIGXFSZ): ulimit -f unlimited" +
               raised_by(limit, heap ? static_cast<std::uint64_t>(*heap) : ResourceLimit::kNone, "fsize");
  return check;
}

Check check_address_space(ResourceLimit limit, int world, std::int64_t threads, std::optional<std::int64_t> heap) {
  // Of a thread: its stack and, in glibc, what malloc sets aside for it. Of the program: itself and its libraries.
  constexpr double kThread = (8 << 20) + (64 << 20), kProgram = 256 << 20;
  Check check{"address space", Verdict::pass, size_of(limit) + " (ulimit -v)", ""};
  if (limit.soft == ResourceLimit::kNone) return check;
  double const own = static_cast<double>(threads) * kThread + kProgram;
  double const needed = own + static_cast<double>(heap.value_or(0)) * world;  // beyond 64 bits, perhaps
  check.found += "; " + size_text(static_cast<std::int64_t>(std::min(needed, 9.2e18))) + " for " +
                 std::to_string(threads) + " threads" +
                 (heap ? " and the heaps of all ranks" : ", to which the heaps of all ranks come");
  if (static_cast<double>(limit.soft) >= needed && heap) return check;
  check.verdict = static_cast<double>(limit.soft) < needed && heap ? Verdict::fail : Verdict::warn;
  check.cure = "Memory is refused beyond it, whatever is free: ulimit -v unlimited" +
               raised_by(limit, static_cast<std::uint64_t>(std::min(needed, 1.8e19)), "as");
  return check;
}

std::vector<Interface> interfaces() {
  std::vector<Interface> all;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return all;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    auto found = std::find_if(all.begin(), all.end(), [&](const Interface& i) { return i.name == at->ifa_name; });
    if (found == all.end()) found = all.insert(all.end(), Interface{.name = at->ifa_name});
    found->up = (at->ifa_flags & IFF_UP) != 0;
    found->loopback = (at->ifa_flags & IFF_LOOPBACK) != 0;
    int const family = at->ifa_addr == nullptr ? AF_UNSPEC : at->ifa_addr->sa_family;
    found->has_address = found->has_address || family == AF_INET || family == AF_INET6;
  }
  ::freeifaddrs(first);
  return all;
}

Check check_interfaces(const std::vector<Interface>& all, const mori_ep::NameFilter& filter) {
  std::vector<std::string> every, usable;
  bool beyond = false;
  for (auto const& i : all) {
    every.push_back(i.name);
    // Loopback is never taken unasked: other machines do not reach it.
    bool const wanted = filter.is_set() ? filter.admits(i.name) : !i.loopback;
    if (!wanted || !i.up || !i.has_address) continue;
    usable.push_back(i.name);
    beyond = beyond || !i.loopback;
  }
  std::string const asked = "MORI_SOCKET_IFNAME is \"" + std::string(filter.list.view()) + '"';
  if (usable.empty() && filter.is_set())
    return {"interface", Verdict::fail,
            asked + ", and no interface that is up and has an address is admitted; there are " + listed(every),
            "Name one of these that is up (ip -brief address), or unset it."};
  if (!beyond)
    return {"interface", Verdict::warn,
            usable.empty() ? "no interface but loopback is up and has an address"
                           : asked + ": " + listed(usable) + ", which no other machine reaches",
            "Ranks of this machine can meet. For several machines, bring a network interface up and give it an "
            "address."};
  return {"interface", Verdict::pass, (filter.is_set() ? asked + ": " : "up: ") + listed(usable), ""};
}

Check check_memfd() {
  std::string trouble;
  (void)file_in_memory(trouble);
  if (trouble.empty()) return {"memfd", Verdict::pass, "memory for several processes can be made and mapped", ""};
  return {"memfd", Verdict::fail, trouble,
          "Ranks that are processes share memory this way: allow memfd_create in the container's seccomp profile, or "
          "run the ranks as threads of one process."};
}

Check check_shared_folder(const std::string& folder, int world) {
  constexpr std::int64_t kEach = std::int64_t{8} << 20;  // a container's 64 MiB serve eight ranks
  struct statvfs usage {};
  bool const there = ::statvfs(folder.c_str(), &usage) == 0;
  auto const bytes = [&](std::uint64_t blocks) { return static_cast<std::int64_t>(blocks * usage.f_frsize); };
  std::int64_t const needed = world * kEach;
  std::string const aside = "MPI (mpi-baseline) keeps a few MiB a rank there, mori_ep nothing";
  Check check{folder, Verdict::pass,
              there ? size_text(bytes(usage.f_bavail)) + " free of " + size_text(bytes(usage.f_blocks)) + "; " + aside
                    : refusal("statvfs") + "; " + aside,
              ""};
  if (!there || bytes(usage.f_bavail) < needed) {
    check.verdict = Verdict::warn;
    check.cure = "Mount it with " + size_text(needed) +
                 " or more: docker run --shm-size, or mount -o remount,size=... " + folder + ".";
  }
  return check;
}

Check check_unix_sockets() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // and no name: the kernel gives one that is not a file's, and that nobody else has
  std::string const trouble = meet(address, sizeof(sa_family_t), pass_descriptor);
  if (trouble.empty()) return {"unix sockets", Verdict::pass, "abstract sockets carry bytes and descriptors", ""};
  return {"unix sockets", Verdict::fail, trouble,
          "Ranks that are processes hand each other memory this way: allow AF_UNIX sockets in the sandbox, or run the "
          "ranks as threads of one process."};
}

Check check_loopback() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string const trouble = meet(address, sizeof(address), pass_byte);
  if (trouble.empty()) return {"loopback", Verdict::pass, "TCP to 127.0.0.1 works", ""};
  return {"loopback", Verdict::fail, "TCP to 127.0.0.1: " + trouble,
          "Bring loopback up (ip link set lo up), and let no firewall stop it."};
}

Check check_atomics() {
  using Word = std::atomic<std::uint64_t>;
  if (Word::is_always_lock_free)
    return {"atomics", Verdict::pass, "64-bit atomics are lock-free, so processes may share them", ""};
  return {"atomics", Verdict::fail, "64-bit atomics take a lock, which another process does not see",
          "Build for a 64-bit processor (on 32-bit ARM or x86: -march that has 64-bit compare and swap)."};
}

}  // namespace ep_bench::doctor_checks
