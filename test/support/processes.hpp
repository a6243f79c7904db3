// SPDX-License-Identifier: MIT
//! @file Other processes: forks, what they hold, and what is left of them.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

namespace mori_ep::test {

//! @brief A fork of this process, which must have one thread, that runs `f` and ends. Killed when this goes first.
class Fork {
 public:
  template <class F>
  explicit Fork(F&& f) : pid_(::fork()) {
    if (pid_ != 0) return;
    int status = 0;
    try {
      f();
    } catch (const std::exception&) {
      status = 1;
    }
    std::_Exit(status);
  }
  Fork(const Fork&) = delete;
  Fork& operator=(const Fork&) = delete;
  ~Fork() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    (void)wait();
  }
  //! @brief Its status, as waitpid(2) tells it.
  int wait() {
    if (pid_ > 0) ::waitpid(std::exchange(pid_, 0), &status_, 0);
    return status_;
  }

 private:
  pid_t pid_;
  int status_ = -1;
};

//! @brief How many entries a folder of /proc has.
inline int entries_of(const std::string& folder) {
  int n = 0;
  for (auto const& entry : std::filesystem::directory_iterator(folder)) n += entry.path().empty() ? 0 : 1;
  return n;
}

//! @brief What a process holds that others could see after it.
struct Held {
  int descriptors = 0, threads = 0, shared_mappings = 0;
  friend bool operator==(const Held&, const Held&) = default;

  static Held here() {
    Held held{.descriptors = entries_of("/proc/self/fd"), .threads = entries_of("/proc/self/task")};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) held.shared_mappings += line.find("memfd:mori_ep") != line.npos;
    return held;
  }
  [[nodiscard]] std::string text() const {
    return std::to_string(descriptors) + " descriptors, " + std::to_string(threads) + " threads, " +
           std::to_string(shared_mappings) + " mappings";
  }
};

//! @brief The inodes of a process's sockets.
inline std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code gone;
  for (auto const& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    std::string const target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

//! @brief Those of the sockets at which the system still listens, with ports or abstract names.
inline std::set<std::string> listening(const std::set<std::string>& inodes) {
  std::set<std::string> found;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6", "/proc/net/unix"}) {
    bool const local = std::string(table).find("unix") != std::string::npos;
    std::ifstream lines(table);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream in(line);
      std::vector<std::string> words;
      for (std::string word; in >> word;) words.push_back(word);
      // Columns of proc(5): a TCP socket's state 0A listens, and its inode is the tenth; a local one's is the seventh.
      std::size_t const inode = local ? 6 : 9;
      bool const listens = words.size() > inode && (local ? words.size() > 7 && words[7][0] == '@' : words[3] == "0A");
      if (listens && inodes.count(words[inode]) != 0) found.insert(local ? words[7] : words[1]);
    }
  }
  return found;
}

}  // namespace mori_ep::test
