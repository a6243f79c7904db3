// SPDX-License-Identifier: MIT
//! @file Expectations on errors from any thread: Catch2's own macros are for one thread only.
#pragma once

#include <mutex>
#include <string>

#include "mori_ep/error.hpp"

namespace mori_ep::test {

//! @brief Gathers what went wrong on any rank.
class Complaints {
 public:
  void add(const std::string& text) {
    std::lock_guard lock(mutex_);
    text_ += text + "\n";
  }
  void expect(bool condition, const std::string& what) {
    if (!condition) add(what);
  }
  //! @brief The status is this error, and its message says so in words.
  void refused(const Status& s, Errc code, const std::string& field, std::int64_t value,
               std::int64_t limit = Error::kNoLimit) {
    std::string const message = s.message();
    auto const said = [&](const std::string& part) { return message.find(part) != std::string::npos; };
    bool const right = s.code() == code && s.error().field == field && s.error().value == value &&
                       s.error().limit == limit && said(name(code)) && said(field + " is " + std::to_string(value)) &&
                       (limit == Error::kNoLimit || said("limit " + std::to_string(limit))) && *s.error().hint != '\0';
    if (!right)
      add("expected " + std::string(name(code)) + " " + field + " is " + std::to_string(value) + " limit " +
          std::to_string(limit) + ", got: " + message);
  }
  [[nodiscard]] std::string text() {
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

}  // namespace mori_ep::test
