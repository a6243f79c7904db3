// SPDX-License-Identifier: MIT
//! @file What is said when the system gives no memory, or no thread: what it was for, how much, and what to do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include <pthread.h>

#include "machine.hpp"

namespace ep_bench {

//! @brief What helps, where memory or a thread was refused.
[[nodiscard]] inline std::string memory_cure() {
  std::string cure = " Give fewer --tokens, a smaller --hidden or fewer ranks";
  if (auto const left = address_space_left())
    cure += ", or raise the limit of address space, of which " + bytes_text(*left) +
            " are left to this process (ulimit -v unlimited)";
  return cure + ".";
}

//! @brief Of a new thread.
[[nodiscard]] inline std::int64_t stack_bytes() {
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  if (::pthread_attr_init(&attributes) != 0) return 0;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return static_cast<std::int64_t>(bytes);
}

//! @brief Memory was refused.
class NoMemory : public std::bad_alloc {
 public:
  NoMemory(const std::string& purpose, std::uint64_t bytes)
      : text_(std::make_shared<std::string>("out of memory: the system refuses " +
                                            bytes_text(static_cast<std::int64_t>(bytes)) + " for " + purpose + "." +
                                            memory_cure())) {}
  [[nodiscard]] const char* what() const noexcept override { return text_->c_str(); }

 private:
  std::shared_ptr<const std::string> text_;
};

//! @brief Calls `make`; where that finds no memory, it was for `purpose` and about so much.
template <class F>
auto with_memory_for(const std::string& purpose, std::uint64_t bytes, F&& make) {
  try {
    return std::forward<F>(make)();
  } catch (const NoMemory&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw NoMemory(purpose, bytes);
  }
}

//! @brief What an error says, with the cure where the standard library's own words have none.
[[nodiscard]] inline std::string text_of(const std::exception& error) {
  if (dynamic_cast<const NoMemory*>(&error) == nullptr && dynamic_cast<const std::bad_alloc*>(&error) != nullptr)
    return "out of memory: the system refuses a small piece." + memory_cure();
  if (auto const* refused = dynamic_cast<const std::system_error*>(&error);
      refused != nullptr && refused->code() == std::errc::resource_unavailable_try_again)
    return "the system refuses another thread, whose stack is " + bytes_text(stack_bytes()) + ": " +
           refused->code().message() + ". Raise the limit of processes and threads (ulimit -u), or free memory." +
           memory_cure();
  return error.what();
}

}  // namespace ep_bench
