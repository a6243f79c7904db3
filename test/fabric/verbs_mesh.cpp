// SPDX-License-Identifier: MIT
// Processes that put random runs and signals to each other over fabric::Verbs, and check every byte.
//   verbs_mesh --processes 4                                              four ranks here
//   verbs_mesh --processes 2 --first 2 --world 4 --at 198.18.0.1:29400    ranks 2 and 3; the others are elsewhere
// The other options are MeshOptions.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include "fabric/verbs_mesh/rank.hpp"
#include "mori_ep/comm/tcp_bootstrap.hpp"

using namespace mori_ep;

namespace {

int run_rank(int rank, int world, const std::string& at, const test::MeshOptions& mesh) {
  auto const played = [&]() -> Status {
    auto const environment = Environment::from_process();
    if (!environment.ok()) return environment.status();
    comm::TcpOptions options(*environment);
    options.timeout = std::chrono::seconds(60);
    auto bootstrap = comm::join_tcp(at, rank, world, options);
    if (!bootstrap.ok()) return bootstrap.status();
    auto comm = comm::Communicator::create(std::move(*bootstrap), *environment, world);
    if (!comm.ok()) return comm.status();
    return test::MeshRank(*comm, mesh).run(*environment);
  }();
  if (!played.ok()) std::printf("FAILED: %s\n", played.message().c_str());
  std::fflush(nullptr);
  return played.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int processes = 2, first = 0, world = 0;
  std::string at = "127.0.0.1:29400";
  test::MeshOptions mesh;
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string const name = argv[i];
    int const number = std::atoi(argv[i + 1]);
    if (name == "--processes")
      processes = number;
    else if (name == "--first")
      first = number;
    else if (name == "--world")
      world = number;
    else if (name == "--at")
      at = argv[i + 1];
    else if (name == "--rounds")
      mesh.rounds = number;
    else if (name == "--most")
      mesh.most = number;
    else if (name == "--queue-pairs")
      mesh.queue_pairs = number;
    else if (name == "--depth")
      mesh.depth = number;
    else if (name == "--seed")
      mesh.seed = static_cast<std::uint64_t>(number);
    else if (name == "--mtu")
      mesh.mtu = number;
    else if (name == "--kill")
      mesh.killed = number;
    else if (name == "--large")
      mesh.large_bytes = number;
    else if (name == "--stream")
      mesh.stream_mib = number;
    else
      argc = 0;
  }
  if (argc % 2 == 0) {
    std::fprintf(stderr, "verbs_mesh: options come in pairs, see the source\n");
    return 2;
  }
  if (world == 0) world = processes;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what a rank has said must outlive it
  for (int i = 0; i < processes; ++i)
    if (::fork() == 0) std::_Exit(run_rank(first + i, world, at, mesh));
  int failed = 0, killed = 0;
  for (int status = 0; ::wait(&status) > 0;)
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
      ++killed;
    else
      failed += status != 0;
  int const to_be_killed = mesh.killed >= first && mesh.killed < first + processes ? 1 : 0;
  return failed == 0 && killed == to_be_killed ? 0 : 1;
}
