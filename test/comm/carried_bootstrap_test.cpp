// SPDX-License-Identifier: MIT
// Joins whose unique id travels through a store or a file, and what an earlier job may have left in the file.
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/stat.h>

#include "mori_ep/comm/carried_bootstrap.hpp"
#include "support/catch.hpp"
#include "support/joining.hpp"
#include "support/processes.hpp"

namespace mori_ep::test {

using comm::Fd;
using comm::join_file;
using comm::UniqueId;
using std::chrono::milliseconds;

namespace {

//! A folder of its own, empty, removed at the end.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/mori_ep_test.XXXXXX";
    REQUIRE(::mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::string path_;
};

//! The others are there first, and find what `file` holds; then comes rank 0.
std::vector<std::optional<Joined>> join_late_root(const std::string& file, int world, const comm::TcpOptions& options) {
  return join_all(comm::all_ranks(world), [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(milliseconds(300));
    return join_file(file, rank, world, options);
  });
}

}  // namespace

TEST_CASE("ranks join by a file, in any order, and it is gone afterwards") {
  Folder const folder;
  auto joined = join_late_root(folder.file("meet"), 4, loopback());
  REQUIRE(all_ok(joined));
  REQUIRE(folder.empty());
  // What the wait for rank 0 took is not taken from the time of later calls.
  for (const auto& one : joined) REQUIRE((**one)->timeout() == loopback().timeout);
  REQUIRE(all_ok(join_all({0, 1, 2}, [&](int rank) {
    if (rank != 0) std::this_thread::sleep_for(milliseconds(50));
    return join_file(folder.file("meet"), rank, 3, loopback());
  })));
  REQUIRE(folder.empty());
}

TEST_CASE("a file that an ended job left behind is waited out") {
  Folder const folder;
  std::string const file = folder.file("meet");
  {
    auto ended = comm::get_unique_id(loopback());
    REQUIRE(comm::detail::write_id(file, ended->id()).ok());
  }
  REQUIRE(all_ok(join_late_root(file, 3, loopback())));
  REQUIRE(folder.empty());
  std::ofstream(file).flush();  // empty, as a launcher may have made it
  REQUIRE(all_ok(join_late_root(file, 2, loopback())));
  REQUIRE(folder.empty());
}

TEST_CASE("a left-over id whose port another job has now leads nowhere, and does that job no harm") {
  Folder const folder;
  std::string const file = folder.file("meet");
  std::vector<std::optional<Joined>> joined;
  auto other = join_by_id({0}, 2, loopback(milliseconds(1500)), [&](const UniqueId& id) {
    UniqueId left_over = id;
    left_over.bytes[8] ^= std::byte{1};  // in the key
    (void)comm::detail::write_id(file, left_over);
    joined = join_late_root(file, 3, loopback());
  });
  REQUIRE(all_ok(joined));
  REQUIRE(folder.empty());
  REQUIRE(other[0]->message().find("no word from rank 1") != std::string::npos);
}

TEST_CASE("a left-over id whose port somebody else has, who is silent or says anything, is given up for the next") {
  for (const char* answer : {"", "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"}) {
    Folder const folder;
    std::string const file = folder.file("meet");
    auto root = comm::get_unique_id(loopback());  // for its port: nobody joins it
    UniqueId const id = root->id();
    root = Error{.code = Errc::invalid_argument};
    auto const listener = comm::listen_at(address_in(id), 16);
    REQUIRE(listener.message() == "ok");
    REQUIRE(comm::detail::write_id(file, id).ok());
    std::atomic<bool> done{false};
    std::atomic<int> served{0};
    std::thread server([&] {
      std::vector<Fd> held;
      while (!done) {
        if (auto guest = comm::accept_one(*listener).socket; guest.open()) {
          ++served;
          say(guest, answer);
          held.push_back(std::move(guest));
        }
        std::this_thread::sleep_for(milliseconds(1));
      }
    });
    auto const begin = std::chrono::steady_clock::now();
    auto const joined = join_late_root(file, 2, loopback());
    auto const took = std::chrono::steady_clock::now() - begin;
    done = true;
    server.join();
    REQUIRE(all_ok(joined));
    REQUIRE(served.load() > 0);
    REQUIRE(took < std::chrono::seconds(10));
  }
}

TEST_CASE("where the file cannot be, rank 0 says so at once and the others in time") {
  Folder const folder;
  std::string const file = folder.file("no such folder") + "/meet";
  auto const root = join_file(file, 0, 2, loopback());
  REQUIRE(root.status().code() == Errc::system_error);
  REQUIRE(root.message().find("system error: file to meet at is \"" + file.substr(0, 60)) != std::string::npos);
  auto const begin = std::chrono::steady_clock::now();
  auto const guest = join_file(file, 1, 2, loopback(milliseconds(200)));
  REQUIRE(guest.message().find("missing rank in join, peer rank 0. Rank 0 has not come to the file") !=
          std::string::npos);
  REQUIRE(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  REQUIRE(join_file(file, 2, 2, loopback()).message().find("rank is 2, limit 1") != std::string::npos);

  // A pipe that nobody writes to is no reason to wait for longer.
  std::string const pipe = folder.file("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  REQUIRE(join_file(pipe, 1, 2, loopback(milliseconds(50))).status().code() == Errc::missing_rank);
}

TEST_CASE("rank 0 takes its file away, also when the others do not come, and writes to no other") {
  Folder const folder;
  std::string const file = folder.file("meet"), precious = folder.file("precious");
  std::ofstream(precious) << "precious";
  std::filesystem::create_symlink(precious, file + "." + std::to_string(::getpid()));
  REQUIRE(join_file(file, 0, 2, loopback(milliseconds(50))).status().code() == Errc::missing_rank);
  std::string content;
  std::ifstream(precious) >> content;
  REQUIRE(content == "precious");
  std::filesystem::remove(precious);
  REQUIRE(folder.empty());
}

TEST_CASE("ranks join by a store, and its errors are theirs") {
  std::mutex mutex;
  std::optional<UniqueId> kept;
  auto const put = [&](const UniqueId& id) -> Status {
    std::lock_guard const lock(mutex);
    kept = id;
    return {};
  };
  auto const get = [&]() -> Result<UniqueId> {
    for (;; std::this_thread::sleep_for(milliseconds(1))) {
      std::lock_guard const lock(mutex);
      if (kept) return *kept;
    }
  };
  REQUIRE(all_ok(join_all({0, 1, 2}, [&](int rank) { return comm::join_by_store(rank, 3, put, get, loopback()); })));

  Error const refusal{.code = Errc::system_error, .field = "store", .value = 7};
  int gets = 0;
  auto const bad_put = [&](const UniqueId&) -> Status { return refusal; };
  auto const bad_get = [&]() -> Result<UniqueId> {
    ++gets;
    return refusal;
  };
  auto const root = comm::join_by_store(0, 2, bad_put, bad_get, loopback());
  REQUIRE(root.message() == Status(refusal).message());
  REQUIRE(gets == 0);
  REQUIRE(comm::join_by_store(1, 2, bad_put, bad_get, loopback()).message() == Status(refusal).message());
  REQUIRE(gets == 1);
  REQUIRE(comm::join_by_store(2, 2, bad_put, bad_get, loopback()).status().code() == Errc::invalid_argument);
  REQUIRE(gets == 1);
}

TEST_CASE("a file that is no meeting point is not replaced, and one that another job has made is not removed") {
  Folder const folder;
  std::string const precious = folder.file("results.txt");
  for (std::string const& content : {std::string("results"), std::string(200, 'x')}) {
    std::ofstream(precious) << content;
    auto const refused = join_file(precious, 0, 2, loopback());
    CHECK(refused.message().find(precious) != std::string::npos);
    CHECK(refused.error().value == EEXIST);
    std::string kept;
    std::ifstream(precious) >> kept;
    CHECK(kept == content);
    REQUIRE(join_file(precious, 1, 2, loopback(milliseconds(50))).status().code() == Errc::missing_rank);
  }
  // Rank 0 of a job whose others do not come; meanwhile another job's rank 0 takes the place.
  std::string const meeting = folder.file("meeting");
  std::string first_said, second_said;
  std::thread first([&] { first_said = join_file(meeting, 0, 2, loopback(milliseconds(400))).message(); });
  std::this_thread::sleep_for(milliseconds(150));
  std::thread second([&] { second_said = join_file(meeting, 0, 2, loopback()).message(); });
  first.join();
  CHECK(join_file(meeting, 1, 2, loopback()).message() == "ok");
  second.join();
  CHECK(second_said == "ok");
  CHECK(first_said != "ok");
}

}  // namespace mori_ep::test
