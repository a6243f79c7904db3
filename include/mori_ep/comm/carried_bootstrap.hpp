// SPDX-License-Identifier: MIT
//! @file Joins over TCP whose unique id travels by itself: through an engine's own store, or a file that all can read.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mori_ep/comm/tcp_bootstrap.hpp"

namespace mori_ep::comm {

//! @brief Collective. `put(const UniqueId&)` is called on rank 0 and stores the id; `get()` is called on the others, waits
//!        for it and returns it. They give a Status and a Result<UniqueId>; their errors are returned.
template <class Put, class Get>
[[nodiscard]] Result<std::shared_ptr<Bootstrap>> join_by_store(int rank, int world, Put&& put, Get&& get,
                                                               const TcpOptions& options = {}) {
  if (Status s = TcpJoin::check(rank, world); !s.ok()) return s;
  if (rank != 0) {
    Result<UniqueId> const id = get();
    if (!id.ok()) return id.status();
    return join_tcp(*id, rank, world, options);
  }
  auto root = get_unique_id(options);
  if (!root.ok()) return root.status();
  if (Status s = put(root->id()); !s.ok()) return s;
  return join_tcp(std::move(*root), world, options);
}

namespace detail {

//! The id in a file; nothing while it is not there, not whole, or of other content.
[[nodiscard]] inline std::optional<UniqueId> read_id(const std::string& path) {
  // O_NONBLOCK: were it a pipe, nobody might ever write to it.
  Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  UniqueId id;
  if (!file.open() || ::read(file.get(), id.bytes.data(), id.bytes.size()) != static_cast<ssize_t>(id.bytes.size()) ||
      !read_unique_id(id))
    return {};
  return id;
}

[[nodiscard]] inline Error file_error(int number, const std::string& path, const char* hint) {
  Error const error = system_error("file to meet at", number, hint);
  return error.with_text(path + ": " + error.text);
}

//! Only what such a file may hold is replaced, so that a path given by mistake costs nobody a file: nothing, or an id.
[[nodiscard]] inline Status may_replace(const std::string& path) {
  struct stat what;
  if (::lstat(path.c_str(), &what) != 0 || S_ISLNK(what.st_mode)) return {};  // a link is replaced, not followed
  if (S_ISREG(what.st_mode) && (what.st_size == 0 || read_id(path))) return {};
  return file_error(EEXIST, path,
                    "It is no file that a job met at, and stays as it is: remove it, or give another path.");
}

//! Can an id ever be read there? A file that is not there may still come.
[[nodiscard]] inline Status may_come(const std::string& path) {
  Fd const file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat what;
  int const failed = file.open() ? (::fstat(file.get(), &what) == 0 && S_ISDIR(what.st_mode) ? EISDIR : 0) : errno;
  if (failed != EACCES && failed != EISDIR && failed != ENOTDIR && failed != ELOOP && failed != ENAMETOOLONG) return {};
  return file_error(failed, path, "Give the path that rank 0 was given, which this user can read.");
}

//! Appears under its name at once and whole.
[[nodiscard]] inline Status write_id(const std::string& path, const UniqueId& id) {
  std::string const unfinished = path + "." + std::to_string(::getpid());
  (void)::unlink(unfinished.c_str());
  // O_EXCL: where others may write, too, the name may be a link to what this user would not have overwritten.
  Fd file(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  bool const made = file.open();
  bool ok = made && ::write(file.get(), id.bytes.data(), id.bytes.size()) == static_cast<ssize_t>(id.bytes.size());
  int failed = errno;
  file.close();
  if (ok && std::rename(unfinished.c_str(), path.c_str()) != 0) {
    ok = false;
    failed = errno;
  }
  if (ok) return {};
  if (made) (void)::unlink(unfinished.c_str());
  return file_error(failed, path,
                    "Give a path in a directory that exists, that this user can write to, and that all ranks share.");
}

}  // namespace detail

//! @brief Collective, by a path that all ranks share and no other job uses at the same time. Rank 0 makes the file and
//!        removes it when all have joined; one that an earlier job left behind is replaced.
[[nodiscard]] inline Result<std::shared_ptr<Bootstrap>> join_file(const std::string& path, int rank, int world,
                                                                  const TcpOptions& options = {}) {
  if (Status s = TcpJoin::check(rank, world); !s.ok()) return s;
  if (rank == 0) {
    auto root = get_unique_id(options);
    if (!root.ok()) return root.status();
    if (Status s = detail::may_replace(path); !s.ok()) return s;
    UniqueId const mine = root->id();
    if (Status s = detail::write_id(path, mine); !s.ok()) return s;
    auto joined = join_tcp(std::move(*root), world, options);
    if (detail::read_id(path) == mine) (void)::unlink(path.c_str());  // else a later job's rank 0 has replaced it
    return joined;
  }
  if (Status s = detail::may_come(path); !s.ok()) return s;
  // An id that is left over leads nowhere, to another job, to somebody who is no rank 0, or to one who never answers:
  // then the file holds another id in time.
  Deadline const deadline(options.timeout);
  std::optional<UniqueId> left_over;
  for (;;) {
    auto const id = detail::read_id(path);
    if (id && id != left_over && TcpRoot::answers(*id)) {
      auto const moved = [&] {
        auto const now = detail::read_id(path);
        return now && now != id;
      };
      auto joined = detail::join_by_id(*id, TcpJoin(rank, world, options.timeout, deadline).unless(moved), rank);
      std::string_view const field = joined.error().field;
      bool const no_root_of_ours =
          joined.status().code() == Errc::protocol_mismatch && (field == "job key" || field == "answer");
      if (joined.ok() || !(no_root_of_ours || moved())) return joined;
      left_over = id;
    }
    if (deadline.passed())
      return Error{.code = Errc::missing_rank,
                   .phase = Phase::join,
                   .rank = rank,
                   .peer = 0,
                   .hint = "Rank 0 has not come to the file that was given. Do all ranks share its directory?"};
    (void)::poll(nullptr, 0, deadline.left_ms(10));
  }
}

}  // namespace mori_ep::comm
