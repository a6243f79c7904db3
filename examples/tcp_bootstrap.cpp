// SPDX-License-Identifier: MIT
// Ranks that are processes, joined over TCP: each is given its rank, the world, and an address of rank 0's host with a
// port that is free there. Where two jobs may be given one address, each gives its ranks a name of its own, too.
//   tcp_bootstrap 0 2 127.0.0.1:29400 & tcp_bootstrap 1 2 127.0.0.1:29400
//   tcp_bootstrap 0 2 127.0.0.1:29400 my_job & tcp_bootstrap 1 2 127.0.0.1:29400 my_job
// Without arguments it starts four ranks itself, by an id that forks need not be told.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

#include "doubling.hpp"

using namespace mori_ep;

namespace {

//! The engine's own part: from a way to join to a communicator, then the work.
template <class Join>
Status run_rank(Join&& join, const Environment& environment) {
  auto bootstrap = join();
  if (!bootstrap.ok()) return bootstrap.status();
  Result<Communicator> comm = Communicator::create(std::move(*bootstrap), environment);
  if (!comm.ok()) return comm.status();
  Result<int> wrong = double_tokens(*comm);
  if (!wrong.ok()) return wrong.status();
  std::printf("tcp_bootstrap: rank %d of %d, process %d: %d wrong elements\n", comm->rank(), comm->world(),
              static_cast<int>(::getpid()), *wrong);
  if (*wrong != 0) return Error{.code = Errc::invalid_argument, .field = "wrong elements", .value = *wrong, .limit = 0};
  return comm->barrier();  // a rank that has left looks to the others like one that has failed
}

int exit_code(const Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  std::fflush(nullptr);
  return status.ok() ? 0 : 1;
}

//! Four forks. Rank 0 keeps the root, behind which it listens; the others need only the id.
int run_forks(const Environment& environment) {
  constexpr int kWorld = 4;
  TcpOptions const options(environment);
  auto root = get_unique_id(options);
  if (!root.ok()) return exit_code(root.status());
  UniqueId const id = root->id();
  for (int rank = 0; rank < kWorld; ++rank) {
    pid_t const child = ::fork();
    if (child < 0) return exit_code(comm::system_error("fork"));
    if (child > 0) {
      if (rank == 0) comm::TcpRoot const given_away = std::move(*root);  // nobody else listens
      continue;
    }
    auto const join = [&] {
      return rank == 0 ? join_tcp(std::move(*root), kWorld, options) : join_tcp(id, rank, kWorld, options);
    };
    std::_Exit(exit_code(run_rank(join, environment)));
  }
  int failed = 0, status = 0;
  while (::wait(&status) > 0) failed += status != 0;
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Result<Environment> environment = Environment::from_process();  // MORI_SOCKET_IFNAME, MORI_BOOTSTRAP_TIMEOUT, ...
  if (!environment.ok()) return exit_code(environment.status());
  if (argc == 1) return run_forks(*environment);
  if (argc != 4 && argc != 5) {
    std::fprintf(stderr, "usage: tcp_bootstrap [RANK WORLD HOST:PORT [JOB]]\n");
    return 2;
  }
  TcpOptions options(*environment);
  if (argc == 5) options.job = argv[4];
  int const rank = std::atoi(argv[1]), world = std::atoi(argv[2]);
  return exit_code(run_rank([&] { return join_tcp(argv[3], rank, world, options); }, *environment));
}
