// SPDX-License-Identifier: MIT
//! @file What went wrong, where, and what to do: Error, Status, Result<T>.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#if defined(__cpp_exceptions)
#include <exception>
#endif

namespace mori_ep {

//! @brief The kind of an error; `name()` gives its spelling in messages.
enum class Errc : std::uint8_t {
  ok = 0,
  invalid_argument,     //!< a call's argument is out of its limits; nothing was enqueued
  invalid_config,       //!< a configuration field is out of its limits; every rank gets the same error
  config_mismatch,      //!< ranks were given different configurations
  protocol_mismatch,    //!< ranks run different versions or types of the operator
  out_of_memory,        //!< memory could not be had, or the caller's memory is too small
  wrong_ticket,         //!< a ticket of another operator, already used, or not ready for this call
  buffer_set_busy,      //!< the buffer set whose turn it is belongs to a ticket in flight
  recv_overflow,        //!< more rows were sent to this rank than it has room for; the surplus was dropped
  timeout,              //!< a wait for a peer reached its deadline
  peer_fault,           //!< another rank met a fault and said so
  out_of_step,          //!< a peer is in a later call than this rank
  device_error,         //!< the GPU runtime refused a call: value is its code, the cure its text; or there is no GPU
  system_error,         //!< the operating system refused a call: value is errno, the field says which call
  invalid_environment,  //!< an environment variable's text is not what it may be
  missing_rank,         //!< a rank did not come to a collective host call in time
  fabric_error          //!< a network did not carry a request to a peer: the text says which; or there is no network
};

//! @brief The protocol step in which a wait failed.
enum class Phase : std::uint8_t {
  none = 0,
  create,
  dispatch_counts,
  dispatch_rows,
  combine_stage,
  combine_ready,
  barrier,
  join
};

constexpr const char* name(Errc code) noexcept {
  switch (code) {
    case Errc::ok:
      return "ok";
    case Errc::invalid_argument:
      return "invalid argument";
    case Errc::invalid_config:
      return "invalid config";
    case Errc::config_mismatch:
      return "config mismatch";
    case Errc::protocol_mismatch:
      return "protocol mismatch";
    case Errc::out_of_memory:
      return "out of memory";
    case Errc::wrong_ticket:
      return "wrong ticket";
    case Errc::buffer_set_busy:
      return "buffer set busy";
    case Errc::recv_overflow:
      return "receive overflow";
    case Errc::timeout:
      return "timeout";
    case Errc::peer_fault:
      return "peer fault";
    case Errc::out_of_step:
      return "out of step";
    case Errc::device_error:
      return "device error";
    case Errc::system_error:
      return "system error";
    case Errc::invalid_environment:
      return "invalid environment";
    case Errc::missing_rank:
      return "missing rank";
    case Errc::fabric_error:
      return "fabric error";
  }
  return "unknown";
}

constexpr const char* name(Phase phase) noexcept {
  switch (phase) {
    case Phase::none:
      return "none";
    case Phase::create:
      return "create";
    case Phase::dispatch_counts:
      return "dispatch: counts";
    case Phase::dispatch_rows:
      return "dispatch: rows";
    case Phase::combine_stage:
      return "combine: stage";
    case Phase::combine_ready:
      return "combine: ready";
    case Phase::barrier:
      return "barrier";
    case Phase::join:
      return "join";
  }
  return "unknown";
}

//! @brief One error, in fields a program can test and a message a person can act on.
//!
//! Its strings are literals, `text` a short copy, so an Error is trivially copyable and costs no allocation until
//! `message()`.
struct Error {
  static constexpr std::int64_t kNoLimit = INT64_MIN;

  Errc code = Errc::ok;
  Phase phase = Phase::none;
  int rank = -1;                  //!< the rank that reports, or -1
  int peer = -1;                  //!< the rank that is to blame, or -1
  const char* field = "";         //!< the argument or configuration field
  std::int64_t value = 0;         //!< what it was
  std::int64_t limit = kNoLimit;  //!< what it had to keep to
  char text[96] = "";             //!< what it was where no number says it, cut to fit; missing_rank: all of them
  std::uint64_t expected = 0;     //!< waits: the epoch waited for
  std::uint64_t seen = 0;         //!< waits: the epoch seen last
  const char* hint = "";          //!< the cure

  //! @brief The error with `text` set to as much of `what` as there is room for.
  [[nodiscard, gnu::noinline]] Error with_text(std::string_view what) const noexcept {
    Error error = *this;
    std::size_t const room = sizeof(text) - 1, n = what.size() < room ? what.size() : room;
    for (std::size_t i = 0; i < n; ++i) error.text[i] = what[i];
    for (std::size_t i = what.size() > room ? room - 3 : n; i < n; ++i) error.text[i] = '.';
    error.text[n] = '\0';
    return error;
  }

  //! @brief The whole error as one line: who, what, field, value, limit, peer, cure.
  [[nodiscard]] std::string message() const {
    std::string line = "mori_ep: ";
    if (rank >= 0) line += "rank " + std::to_string(rank) + ": ";
    line += name(code);
    if (phase != Phase::none) line += std::string(" in ") + name(phase);
    if (code == Errc::peer_fault) {
      line += ": rank " + std::to_string(value) + " reports a fault of";
    } else if (code == Errc::missing_rank && *text != '\0') {
      line += std::string(": no word from rank ") + text;
    } else if (*field != '\0') {
      line += std::string(": ") + field + " is ";
      line += *text != '\0' ? '"' + std::string(text) + '"' : std::to_string(value);
      if (limit != kNoLimit) line += ", limit " + std::to_string(limit);
    }
    if (peer >= 0 && (code != Errc::missing_rank || *text == '\0'))
      line += (code == Errc::peer_fault ? " peer rank " : ", peer rank ") + std::to_string(peer);
    if (code == Errc::timeout || code == Errc::out_of_step)
      line += ", expected epoch " + std::to_string(expected) + ", seen " + std::to_string(seen);
    if (*hint != '\0') line += std::string(". ") + hint;
    return line;
  }
};

#if defined(__cpp_exceptions)
//! @brief What `value()` and `or_throw()` throw.
class Exception : public std::exception {
 public:
  explicit Exception(const Error& error) : error_(error), text_(error.message()) {}
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }
  [[nodiscard]] const Error& error() const noexcept { return error_; }

 private:
  Error error_;
  std::string text_;
};
#endif

namespace detail {
[[noreturn]] inline void raise(const Error& error) {
#if defined(__cpp_exceptions)
  throw Exception(error);
#else
  (void)error;
  std::abort();
#endif
}
}  // namespace detail

//! @brief Success, or an Error.
class [[nodiscard]] Status {
 public:
  constexpr Status() noexcept = default;
  constexpr Status(const Error& error) noexcept : error_(error) {}  // NOLINT: an Error is a Status

  [[nodiscard]] constexpr bool ok() const noexcept { return error_.code == Errc::ok; }
  constexpr explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] constexpr const Error& error() const noexcept { return error_; }
  [[nodiscard]] constexpr Errc code() const noexcept { return error_.code; }
  [[nodiscard]] std::string message() const { return ok() ? "ok" : error_.message(); }
  //! @brief Throws Exception when not ok (aborts where exceptions are off).
  void or_throw() const {
    if (!ok()) detail::raise(error_);
  }

 private:
  Error error_{};
};

//! @brief A T, or the Error that kept it from being made (std::expected is C++23).
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) noexcept : value_(std::move(value)) {}  // NOLINT: a T is a Result
  Result(const Error& error) noexcept : error_(error) {}  // NOLINT: an Error is a Result
  Result(const Status& status) noexcept : error_(status.error()) {
    if (status.ok())
      error_ = Error{.code = Errc::invalid_argument, .field = "status", .hint = "A Result needs a value or an error."};
  }  // NOLINT: a failed Status is a Result

  [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  [[nodiscard]] const Error& error() const noexcept { return error_; }
  [[nodiscard]] Status status() const noexcept { return ok() ? Status{} : Status{error_}; }
  [[nodiscard]] std::string message() const { return status().message(); }

  [[nodiscard]] T& operator*() & noexcept { return *value_; }
  [[nodiscard]] const T& operator*() const& noexcept { return *value_; }
  [[nodiscard]] T&& operator*() && noexcept { return std::move(*value_); }
  [[nodiscard]] T* operator->() noexcept { return &*value_; }
  [[nodiscard]] const T* operator->() const noexcept { return &*value_; }
  //! @brief The value; throws Exception when there is none (aborts where exceptions are off).
  [[nodiscard]] T& value() & {
    if (!ok()) detail::raise(error_);
    return *value_;
  }
  [[nodiscard]] T&& value() && {
    if (!ok()) detail::raise(error_);
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Error error_{};
};

}  // namespace mori_ep
