// SPDX-License-Identifier: MIT
#include "children.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "no_memory.hpp"

namespace ep_bench {
namespace {

using Clock = std::chrono::steady_clock;

//! Signals that this process waits for instead of being interrupted by them: a child has ended, or all is to end.
class AwaitedSignals {
 public:
  AwaitedSignals() {
    std::signal(SIGCHLD, SIG_DFL);  // ignored, children would leave no status
    sigemptyset(&awaited_);
    sigaddset(&awaited_, SIGCHLD);
    for (int number : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction action {};
      if (::sigaction(number, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&awaited_, number);
    }
    ::sigprocmask(SIG_BLOCK, &awaited_, &before_);
  }
  AwaitedSignals(const AwaitedSignals&) = delete;
  AwaitedSignals& operator=(const AwaitedSignals&) = delete;
  ~AwaitedSignals() { restore(); }
  void restore() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  //! The next signal, or a negative number when none comes for a while.
  [[nodiscard]] int next() const {
    timespec const slice{.tv_sec = 0, .tv_nsec = 500'000'000};
    return ::sigtimedwait(&awaited_, nullptr, &slice);
  }

 private:
  sigset_t awaited_, before_;
};

class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() { kill_all(); }
  void add(pid_t pid) { all_.push_back({.pid = pid}); }
  [[nodiscard]] bool running() const {
    return std::any_of(all_.begin(), all_.end(), [](const Child& child) { return child.pid > 0; });
  }
  //! Calls `f` with the number and the status of each that has ended, and takes note of those that are stopped.
  template <class F>
  void reap(F&& f) {
    for (std::size_t i = 0; i < all_.size(); ++i) {
      Child& child = all_[i];
      int status = 0;
      while (child.pid > 0 && ::waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.pid) {
        child.stopped = WIFSTOPPED(status);
        if (WIFSTOPPED(status) || WIFCONTINUED(status)) continue;
        child.pid = 0;
        f(static_cast<int>(i), status);
      }
    }
  }
  //! Kills those of whom `f` says so, called with the number and whether it is stopped.
  template <class F>
  void kill_if(F&& f) {
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (Child& child = all_[i]; child.pid > 0 && f(static_cast<int>(i), child.stopped)) {
        ::kill(child.pid, SIGKILL);
        ::waitpid(std::exchange(child.pid, 0), nullptr, 0);
      }
  }
  void kill_all() {
    for (const Child& child : all_)
      if (child.pid > 0) ::kill(child.pid, SIGKILL);  // all of them, before any is waited for
    kill_if([](int, bool) { return true; });
  }

 private:
  struct Child {
    pid_t pid = 0;  // 0: has ended, and is waited for
    bool stopped = false;
  };
  std::vector<Child> all_;
};

[[noreturn]] void be_child(int number, pid_t parent, const AwaitedSignals& signals,
                           const std::function<int(int)>& child) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) std::_Exit(1);  // it ended before that
  signals.restore();
  int code = 1;
  try {
    code = child(number);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ep_bench: rank %d: %s\n", number, text_of(error).c_str());
  }
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(code);  // what else there is to tidy up is the parent's
}

}  // namespace

int run_children(int count, const std::function<int(int)>& child, const std::function<void()>& started) {
  constexpr auto kGrace = std::chrono::seconds(5);
  AwaitedSignals const signals;
  Children children;
  std::cout.flush();
  std::fflush(nullptr);
  pid_t const parent = ::getpid();
  for (int number = 0; number < count; ++number) {
    pid_t const pid = ::fork();
    if (pid == 0) be_child(number, parent, signals, child);
    if (pid < 0)
      throw std::runtime_error("rank " + std::to_string(number) + " cannot be started, fork: " + std::strerror(errno) +
                               ". Raise the limit of processes (ulimit -u), or give fewer ranks.");
    children.add(pid);
  }
  started();
  int first_code = 0, failed_code = 0;
  std::optional<Clock::time_point> deadline;
  while (children.running()) {
    int const signal = signals.next();
    children.reap([&](int number, int status) {
      int const code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      if (WIFSIGNALED(status))
        std::fprintf(stderr, "ep_bench: rank %d was ended by signal %d (%s)\n", number, WTERMSIG(status),
                     ::strsignal(WTERMSIG(status)));
      if (number == 0) first_code = code;
      if (code == 0 || failed_code != 0) return;
      failed_code = code;
      deadline = Clock::now() + kGrace;
    });
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      children.kill_all();
      signals.restore();
      std::raise(signal);
    }
    if (!deadline) continue;
    bool const too_late = Clock::now() >= *deadline;
    children.kill_if([&](int number, bool stopped) {
      if (stopped || too_late)
        std::fprintf(stderr, "ep_bench: rank %d %s, and is killed\n", number,
                     stopped ? "is stopped" : "has not ended since");
      return stopped || too_late;
    });
  }
  return first_code != 0 ? first_code : failed_code;
}

}  // namespace ep_bench
